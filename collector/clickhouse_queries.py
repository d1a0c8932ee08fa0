"""Runs statements of SQL requests in a bounded number of threads, by the ids that clients gave them.

Invariants: an id runs once at a time; a KILL needs no thread of those that it could free; what a statement reads goes
into a pipe, so that it takes no more memory than its reader leaves it and ends when its reader has gone.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from collector import clickhouse_memory
from collector.clickhouse_answer import empty_native
from collector.clickhouse_body import Body
from collector.clickhouse_request import SYNTAX_ERROR, External, Insert, SqlRequest, error
from collector.clickhouse_sessions import Sessions
from collector.clickhouse_statement import renamed, tokens_of
from collector.clickhouse_turns import Turns
from collector.clickhouse_users import READONLY, User
from collector.engine import Answer, Connection, Engine, EngineError, quote

log = logging.getLogger(__name__)

THREADS, READER_THREADS = 16, 12
KILL_THREADS, READER_KILL_THREADS = 4, 2
KILL_AGAIN_S = 0.25
PIPE_BYTES = 1 << 18
ALREADY_RUNNING, QUERY_WAS_CANCELLED = 216, 394


@dataclass(frozen=True)
class Task:
    """What is to be run. `body` holds the data of an insert; `tables` come with the request."""

    request: SqlRequest
    user: User
    readonly: bool
    body: Body
    tables: Mapping[External, Body]


@dataclass(eq=False)
class Query:
    """One that is running or waits for its turn. `result` is the reading end of its pipe, None where it gives no rows.

    `progress` holds the latest numbers of the engine.
    """

    tag: str
    reads: bool
    result: int | None = None
    future: "Future[Answer]" = field(default_factory=Future)
    progress: Mapping[str, int] = field(default_factory=dict)

    def watch(self, progress: Mapping[str, int]) -> None:
        """Called by the engine from time to time."""
        self.progress = progress


class Queries:
    """To stop: `finish`, then `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions = Sessions(engine)
        self._threads = ThreadPoolExecutor(THREADS + KILL_THREADS, thread_name_prefix="sql")
        self._turns = Turns(THREADS, READER_THREADS)
        self._kill_turns = Turns(KILL_THREADS, READER_KILL_THREADS)
        self._control = ThreadPoolExecutor(1, thread_name_prefix="sql-control")
        self._running: dict[str, Query] = {}
        self._doomed: set[Query] = set()
        self._killer: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self, task: Task, query_id: str) -> Query:
        """Return once it runs. Raises EngineError where there are too many, or one of this id."""
        while (same := self._running.get(query_id)) is not None:
            if not task.request.replaces:
                text = f"Query with id = {query_id} is already running. (QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING)"
                raise error(ALREADY_RUNNING, text)
            self._doom(same)
            await self._killed()
        query = Query(query_id, task.request.reads)
        self._running[query_id] = query
        query.future.add_done_callback(lambda _: self._ended(query))
        await self._turn(task, query)
        if query.reads:
            try:
                query.result, writing = _pipe()
            except OSError as failed:  # too many files are open: its turn and its id are free again
                query.future.set_exception(failed)
                raise
            query.future.add_done_callback(lambda _: os.close(writing))
            running = self._threads.submit(self._read, task, query, writing)
        else:
            running = self._threads.submit(self._change, task, query)
        running.add_done_callback(lambda done: _settle(query.future, done))
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep_memory(), name="sql-memory")
        return query

    async def _turn(self, task: Task, query: Query) -> None:
        """Wait for it, unless the query is stopped or its client goes away meanwhile. It ends with the query."""
        turns = self._kill_turns if task.request.statement.verb == "KILL" else self._turns
        writes, loop = task.user.writes, asyncio.get_running_loop()
        taking = asyncio.create_task(turns.take(writes=writes))
        query.future.add_done_callback(lambda _: loop.call_soon_threadsafe(taking.cancel))

        def unused(taken: "asyncio.Task[None]") -> None:
            if not taken.cancelled() and taken.exception() is None:
                turns.give(writes=writes)

        begun = False
        try:
            await taking
            begun = query.future.set_running_or_notify_cancel()
        except asyncio.CancelledError:
            if not query.future.cancelled():  # it is not stopped: its client has gone
                raise
        finally:
            if not begun:
                query.future.cancel()
                taking.add_done_callback(unused)
        if not begun:
            raise error(QUERY_WAS_CANCELLED, "Query was cancelled before it began. (QUERY_WAS_CANCELLED)")
        query.future.add_done_callback(lambda _: loop.call_soon_threadsafe(lambda: turns.give(writes=writes)))

    def cancel(self, query: Query) -> None:
        """Nobody waits for it any more: stop it, in the background, unless it changes something."""
        if query.reads:
            self._doom(query)

    async def finish(self, within_s: float) -> None:
        """Let running statements end, and stop those that have not after `within_s`: their clients get an error."""
        ends = [asyncio.wrap_future(query.future) for query in list(self._running.values())]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.gather(*ends, return_exceptions=True)), within_s)
        for query in list(self._running.values()):
            self._doom(query)
        await self._killed()

    async def close(self) -> None:
        """Let go of the engine. No request may be at work."""
        await self._killed()
        if self._keeper is not None:
            await self._keeper
        self._threads.shutdown()
        self._control.shutdown()
        self._sessions.close()

    def _ended(self, query: Query) -> None:
        if self._running.get(query.tag) is query:
            del self._running[query.tag]

    def _doom(self, query: Query) -> None:
        if query.future.cancel():
            return
        self._doomed.add(query)
        if self._killer is None or self._killer.done():
            self._killer = asyncio.create_task(self._kill(), name="sql-killer")

    async def _keep_memory(self) -> None:
        while self._running:
            await asyncio.sleep(clickhouse_memory.LOOK_S)
            if clickhouse_memory.is_high():
                await asyncio.get_running_loop().run_in_executor(self._control, clickhouse_memory.relieve, self._engine)

    async def _killed(self) -> None:
        """Return when all that are to be stopped have ended."""
        if self._killer is not None:
            await asyncio.shield(self._killer)

    async def _kill(self) -> None:
        """All that are doomed, until they have ended: one may not have begun yet, or be in a step that cannot stop."""
        while self._doomed:
            tags = [query.tag for query in self._doomed]
            try:
                await asyncio.get_running_loop().run_in_executor(self._control, self._sessions.kill, tags)
            except EngineError as refused:
                log.warning("cannot stop statements number=%d error=%s", len(tags), refused)
            await asyncio.sleep(KILL_AGAIN_S)
            self._doomed = {query for query in self._doomed if not query.future.done()}

    def _read(self, task: Task, query: Query, writing: int) -> Answer:
        """In a thread: the result goes into the pipe."""
        request = task.request
        statement = request.statement
        with self._connection(task, query) as connection:
            # The format is told twice: the engine gives SHOW that of the call, and with Null no rows.
            sql = statement.into(f"/proc/self/fd/{writing}", request.output_format)
            try:
                answer = connection.query(sql, request.output_format, request.params)
            except EngineError as refused:
                if refused.code != SYNTAX_ERROR:
                    raise
                # The same error, but of the client's own text. Should that be right after all, it is served whole.
                answer = connection.query(statement.sql, request.output_format, request.params)
                _write(writing, answer.body)
            if request.output_format == "Native" and answer.read_rows == 0:
                description = connection.query(request.describe(), "JSONCompact", request.params)
                _write(writing, empty_native(description.body))
            return answer

    def _change(self, task: Task, query: Query) -> Answer:
        """In a thread: nothing is read, or only what became of a KILL."""
        request = task.request
        with self._connection(task, query) as connection:
            if (insert := request.insert) is not None:
                with _data(insert, task.body) as path:
                    return connection.query(
                        f"{insert.into} FROM INFILE '{path}' {insert.settings} FORMAT {insert.input_format}",
                        "Null",
                        request.params,
                    )
            sql = request.statement.sql
            if request.statement.verb == "KILL":
                sql = _kill_statement(sql, task.user, request.params)
            return connection.query(sql, request.output_format, request.params)

    @contextmanager
    def _connection(self, task: Task, query: Query) -> Iterator[Connection]:
        """With the tables of the request, which go with it."""
        with (
            self._sessions.connection(task.request, task.user, readonly=task.readonly, tag=query.tag) as connection,
            ExitStack() as stack,
        ):
            connection.watch(query.watch)
            for table, data in task.tables.items():
                connection.query(f"CREATE TEMPORARY TABLE {table.name} ({table.columns}) ENGINE = Memory")
                stack.callback(connection.query, f"DROP TEMPORARY TABLE {table.name}")
                with data.path() as path:
                    connection.query(f"INSERT INTO {table.name} FROM INFILE '{path}' FORMAT {table.input_format}")
            yield connection


def _settle(future: "Future[Answer]", done: "Future[Answer]") -> None:
    if (failed := done.exception()) is not None:
        future.set_exception(failed)
    else:
        future.set_result(done.result())


@contextmanager
def _data(insert: Insert, body: Body) -> Iterator[str]:
    """A path to the data of an insert: what followed the statement in the URL, and then the body."""
    if not insert.inline:
        with body.path(insert.data_start) as path:
            yield path
        return
    with body.like(insert.inline) as whole:
        for piece in body.pieces():
            whole.write(piece)
        with whole.path() as path:
            yield path


def _kill_statement(sql: bytes, user: User, params: Mapping[str, str]) -> bytes:
    """KILL QUERY by the ids that clients gave, or by the engine's, where the statement names one as it is.

    Who only reads stops nothing but what only reads.
    """
    tokens = list(tokens_of(sql))
    where = next((token for token in tokens if token.is_word("WHERE")), None)
    if where is None or not tokens[1].is_word("QUERY"):
        if user.writes:
            return sql
        raise error(READONLY, "KILL QUERY WHERE ... is the only KILL in readonly mode. (READONLY)")
    if any(token.depth < 0 for token in tokens):  # else the condition could leave the brackets that it is put in
        raise error(SYNTAX_ERROR, "a bracket is closed that is not open. (SYNTAX_ERROR)")
    rest = [token for token in tokens if token.start > where.start and token.depth == 0]
    end = next((token.start for token in rest if token.is_word("SYNC", "ASYNC", "TEST", "FORMAT")), len(sql))
    named = [token.text for token in tokens if where.start < token.start < end and token.kind == "string"]
    named += [quote(value).encode() for value in params.values()]
    known = b"if(query_id IN (%b), query_id, Settings['log_comment'])" % b", ".join(named or [b"''"])
    condition = renamed(sql[where.end : end], "query_id", known)
    whose = b"" if user.writes else b" AND Settings['readonly'] = '2'"
    return b"KILL QUERY WHERE (%b\n)%b %b" % (condition, whose, sql[end:])


def _write(descriptor: int, data: bytes) -> None:
    with suppress(BrokenPipeError):  # nobody reads it any more
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # a user may have many pipes already: then it stays small
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing
