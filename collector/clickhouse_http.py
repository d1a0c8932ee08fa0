"""ClickHouse's HTTP interface in front of the embedded engine, so that unmodified clients and curl read and write it.

A client that goes away, or takes nothing of its answer for a while, takes its statement with it if that only reads. A
GET changes nothing, as in ClickHouse, and neither does a user without a password.
"""

import asyncio
import logging
import uuid
from contextlib import ExitStack
from pathlib import Path

from aiohttp import BodyPartReader, web

from collector.clickhouse_advice import advice, told_to
from collector.clickhouse_answer import hello, is_hello
from collector.clickhouse_body import MAX_BODY_BYTES, Body, receive
from collector.clickhouse_encoding import chosen
from collector.clickhouse_queries import Queries, Task
from collector.clickhouse_reply import Reply
from collector.clickhouse_request import BAD_ARGUMENTS, External, SqlRequest, error, external, parse
from collector.clickhouse_users import Users
from collector.compression import SUPPORTED, EncodingError, TooLargeError, UnknownEncodingError
from collector.engine import Answer, Engine, EngineError
from collector.guard import same_site

log = logging.getLogger(__name__)


class ClickHouseHttp:
    """The routes. To stop: `finish`, then `close`."""

    def __init__(self, engine: Engine, users: Users) -> None:
        self._engine = engine
        self._users = users
        self._queries = Queries(engine)

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
        await self._queries.finish(within_s)

    async def close(self) -> None:
        """Let go of the engine. No request may be at work."""
        await self._queries.close()

    async def _ping(self, _: web.Request) -> web.Response:
        return web.Response(text="Ok.\n")

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not request.query_string and not request.can_read_body:
            return web.Response(text="Ok.\n")
        parameters = dict(request.query)
        query_id = parameters.get("query_id") or str(uuid.uuid4())
        encoding = chosen(parameters, request.headers.get("Accept-Encoding", ""))
        reply = Reply(request, self._engine, encoding, query_id)
        user = None
        with ExitStack() as held:
            try:
                user = self._users.authenticate(request.headers, parameters)
                tables, body = await self._received(request, parameters, held)
                asked = await asyncio.to_thread(parse, parameters, request.headers, body)
                reply.describe(asked)
                if (block := self._hello(asked)) is not None:
                    return reply.whole(block, Answer())
                return await self._run(Task(asked, user, request.method != "POST", body, tables), query_id, reply)
            except EngineError as refused:
                hint = advice(refused, user, by_get=request.method != "POST")
                return reply.refusal(told_to(user, refused), hint)

    async def _run(self, task: Task, query_id: str, reply: Reply) -> web.StreamResponse:
        query = await self._queries.start(task, query_id)
        ended = asyncio.wrap_future(query.future)
        try:
            if query.result is not None:
                return await reply.rows(query, query.result, ended, task.request)
            answer = await asyncio.shield(ended)
        except (asyncio.CancelledError, ConnectionError, TimeoutError) as gone:
            ended.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else will look
            self._queries.cancel(query)
            if not isinstance(gone, TimeoutError):
                raise
            log.info("client takes nothing of its answer query_id=%.100s", query_id)
            reply.abort()
            raise ConnectionResetError from gone
        return reply.whole(answer.body, answer)

    def _hello(self, asked: SqlRequest) -> bytes | None:
        """The answer to clickhouse-go's first statement; None where it is another."""
        if not asked.protocol_version or asked.output_format != "Native" or not is_hello(asked.statement.asked):
            return None
        return hello(self._engine.version, self._engine.timezone, asked.protocol_version)

    async def _received(
        self, request: web.Request, parameters: dict[str, str], held: ExitStack
    ) -> tuple[dict[External, Body], Body]:
        """The body. Of a form: its fields become parameters, its files tables."""
        directory = self._engine.directory
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        framed = parameters.get("decompress") == "1"
        try:
            if request.content_type.startswith("multipart/"):
                tables = await _form(request, parameters, directory, held)
                return tables, held.enter_context(Body(directory))
            raw = held.enter_context(await receive(request.content, directory))
            if not raw.size or (not framed and encoding in ("", "identity")):
                return {}, raw
            return {}, held.enter_context(await asyncio.to_thread(raw.decoded, encoding, framed=framed))
        except EncodingError as refused:
            raise error(BAD_ARGUMENTS, str(refused)) from refused
        except UnknownEncodingError as refused:
            names = ", ".join(SUPPORTED)
            raise error(BAD_ARGUMENTS, f"Content-Encoding {encoding} is not known: use {names}") from refused
        except TooLargeError:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES) from None


async def _form(
    request: web.Request, parameters: dict[str, str], directory: Path, held: ExitStack
) -> dict[External, Body]:
    files: list[tuple[str, Body]] = []
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise error(BAD_ARGUMENTS, "a part of the form has no name")
            body = held.enter_context(Body(directory))
            while piece := await part.read_chunk():
                body.write(piece)
            if part.filename is not None:
                files.append((part.name, body))
            else:
                parameters[part.name] = body.read().decode()
    except (ValueError, UnicodeDecodeError) as cause:
        raise error(BAD_ARGUMENTS, f"the form cannot be read: {cause}") from cause
    return {external(name, parameters): body for name, body in files}
