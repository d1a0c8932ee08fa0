"""ClickHouse's HTTP interface in front of the embedded engine, so that unmodified clients and curl read and write it.

Statements run in a bounded number of threads; beyond `MAX_WAITING` more, a request is refused at once. A client that
goes away takes its statement with it if that only reads. A GET changes nothing, as in ClickHouse.
"""

import asyncio
import logging
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from aiohttp import web

from collector.clickhouse_answer import content_type, empty_native, error_status, summary
from collector.clickhouse_request import BAD_ARGUMENTS, SqlRequest, error, parse
from collector.clickhouse_sessions import Sessions
from collector.compression import SUPPORTED, EncodingError, TooLargeError, UnknownEncodingError, compress, decompress
from collector.engine import Answer, Engine, EngineError
from collector.guard import same_site

log = logging.getLogger(__name__)

THREADS = 8
MAX_WAITING = 64
MAX_BODY_BYTES = 1 << 30
COMPRESS_BYTES = 4096
KILL_AGAIN_S = 0.25
TOO_MANY_SIMULTANEOUS_QUERIES = 202


class ClickHouseHttp:
    """The routes. To stop: `finish`, then `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions = Sessions(engine)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sql")
        self._control = ThreadPoolExecutor(1, thread_name_prefix="sql-control")
        self._running: dict[str, Future[Answer]] = {}
        self._killing: set[asyncio.Task[None]] = set()

    def application(self, host: str) -> web.Application:
        """The application that serves them on `host`."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[same_site(host)])
        for path in ("/ping", "/replicas_status"):
            app.router.add_get(path, self._ping)
        for path in ("/", "/query"):
            app.router.add_get(path, self._handle)
            app.router.add_post(path, self._handle)
        return app

    async def finish(self, within_s: float) -> None:
        """Let running statements end, and stop those that have not after `within_s`: their clients get an error."""
        ends = [asyncio.wrap_future(future) for future in list(self._running.values())]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.gather(*ends, return_exceptions=True)), within_s)
        await asyncio.gather(*(self._kill(tag, future) for tag, future in list(self._running.items())))

    async def close(self) -> None:
        """Let go of the engine. No request may be at work."""
        await asyncio.gather(*self._killing)
        self._threads.shutdown()
        self._control.shutdown()
        self._sessions.close()

    async def _ping(self, _: web.Request) -> web.Response:
        return web.Response(text="Ok.\n")

    async def _handle(self, request: web.Request) -> web.Response:
        if not request.query_string and not request.can_read_body:
            return web.Response(text="Ok.\n")
        query_id = request.query.get("query_id") or str(uuid.uuid4())
        headers = {
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Server-Display-Name": "tracegrad",
            "X-ClickHouse-Timezone": self._engine.timezone,
        }
        try:
            statement = parse(request.query, request.headers, await self._body(request))
            answer = await self._run(statement, readonly=request.method != "POST")
        except EngineError as refused:
            headers["X-ClickHouse-Exception-Code"] = str(refused.code)
            text = f"{str(refused).rstrip()} (version {self._engine.version} (official build))\n"
            return web.Response(status=error_status(refused), text=text, headers=headers)
        headers["X-ClickHouse-Summary"] = summary(answer)
        if statement.reads:
            headers["X-ClickHouse-Format"] = statement.output_format
        headers["Content-Type"] = content_type(statement.output_format)
        body = answer.body
        encoding = _encoding(request) if statement.compress_answer and len(body) > COMPRESS_BYTES else None
        if encoding is not None:
            headers["Content-Encoding"] = encoding
            body = await asyncio.to_thread(compress, encoding, body)
        return web.Response(body=body, headers=headers)

    async def _body(self, request: web.Request) -> bytes:
        raw = await request.read()
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        try:
            return await asyncio.to_thread(decompress, encoding, raw, MAX_BODY_BYTES) if encoding and raw else raw
        except EncodingError as refused:
            raise error(BAD_ARGUMENTS, str(refused)) from refused
        except UnknownEncodingError as refused:
            raise error(
                BAD_ARGUMENTS, f"Content-Encoding {encoding} is not known: use {', '.join(SUPPORTED)}"
            ) from refused
        except TooLargeError:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES) from None

    async def _run(self, statement: SqlRequest, *, readonly: bool) -> Answer:
        if len(self._running) >= THREADS + MAX_WAITING:
            raise error(
                TOO_MANY_SIMULTANEOUS_QUERIES, f"{len(self._running)} statements are running or waiting already"
            )
        tag = uuid.uuid4().hex
        future = self._threads.submit(self._execute, statement, readonly, tag)
        self._running[tag] = future
        future.add_done_callback(lambda _: self._running.pop(tag))
        answer = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else will look
            if statement.reads:
                task = asyncio.create_task(self._kill(tag, future))
                self._killing.add(task)
                task.add_done_callback(self._killing.discard)
            raise

    async def _kill(self, tag: str, future: Future[Answer]) -> None:
        """Until it has ended: it may not have begun yet, or be in a step that cannot be stopped."""
        if future.cancel():
            return
        while not future.done():
            try:
                await asyncio.get_running_loop().run_in_executor(self._control, self._sessions.kill, tag)
            except EngineError as refused:
                log.warning("cannot stop a statement tag=%s error=%s", tag, refused)
            await asyncio.sleep(KILL_AGAIN_S)

    def _execute(self, statement: SqlRequest, readonly: bool, tag: str) -> Answer:
        """In a thread: run it on a connection of its own or of its session."""
        with self._sessions.connection(statement, readonly=readonly, tag=tag) as connection:
            if (insert := statement.insert) is not None:
                return connection.insert(insert.into, insert.settings, insert.input_format, insert.data)
            answer = connection.query(statement.sql, statement.output_format, statement.params)
            if statement.reads and statement.output_format == "Native" and not answer.body:
                description = connection.query(statement.describe(), "JSONCompact", statement.params)
                return replace(answer, body=empty_native(description.body))
            return answer


def _encoding(request: web.Request) -> str | None:
    """The first encoding the client takes that we have."""
    for choice in request.headers.get("Accept-Encoding", "").lower().split(","):
        name = choice.split(";")[0].strip()
        if name in SUPPORTED:
            return name
    return None
