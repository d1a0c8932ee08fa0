"""Writes the answer of one request: whole where it fits into what is held back, else as its rows come.

Invariant: a status is sent once it is known or once there is more than is held back. An error after that is written
behind the rows, marked by a tag from the header, and the connection is cut, so that nobody takes a part for the whole.
"""

import asyncio
import os
from collections.abc import Iterable

from aiohttp import web

from collector.clickhouse_advice import advice
from collector.clickhouse_answer import (
    as_summary,
    content_type,
    error_in_answer,
    error_status,
    error_text,
    new_tag,
    summary,
)
from collector.clickhouse_body import Body
from collector.clickhouse_encoding import Encoding
from collector.clickhouse_queries import Query
from collector.clickhouse_request import SqlRequest, error
from collector.compression import TooLargeError
from collector.engine import Answer, Engine, EngineError

CHUNK_BYTES = 1 << 18
SEND_TIMEOUT_S = 60.0
"""How long a client may take nothing of an answer; then it has gone. Its statement keeps a thread meanwhile."""
TOO_MANY_BYTES = 396


class Reply:
    """The answer to `request`. Each of `whole`, `refusal` and `rows` makes a response; one of them is called."""

    def __init__(self, request: web.Request, engine: Engine, encoding: Encoding, query_id: str) -> None:
        self._request = request
        self._engine = engine
        self._encoding = encoding
        self._tag = new_tag()
        self._headers = {
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Server-Display-Name": "tracegrad",
            "X-ClickHouse-Timezone": engine.timezone,
            "X-ClickHouse-Exception-Tag": self._tag,
            "Content-Type": "text/plain; charset=UTF-8",
        }

    def describe(self, asked: SqlRequest) -> None:
        """Headers that follow from the statement."""
        self._headers["Content-Type"] = content_type(asked.output_format)
        self._headers["X-ClickHouse-Timezone"] = asked.settings.get("session_timezone") or self._engine.timezone
        if asked.reads:
            self._headers["X-ClickHouse-Format"] = asked.output_format

    def whole(self, body: bytes, answer: Answer) -> web.Response:
        """A complete answer."""
        self._headers["X-ClickHouse-Summary"] = summary(answer)
        return self._response(200, body)

    def refusal(self, refused: EngineError, hint: str) -> web.Response:
        """An error, before anything was sent."""
        self._headers["Content-Type"] = "text/plain; charset=UTF-8"
        self._headers["X-ClickHouse-Exception-Code"] = str(refused.code)
        self._headers.pop("X-ClickHouse-Format", None)
        return self._response(error_status(refused), error_text(refused, self._engine.version, hint).encode())

    async def rows(
        self, query: Query, reading: int, ended: "asyncio.Future[Answer]", asked: SqlRequest
    ) -> web.StreamResponse:
        """What a statement writes into a pipe. Raises EngineError before anything was sent, and ConnectionError or
        TimeoutError where the client takes no more of it.
        """
        limit = asked.held_bytes
        empty = self._request.method == "HEAD"
        with Body(self._engine.directory) as held:
            with _Pipe(reading) as pipe:
                while piece := await pipe.read():
                    _hold(held, b"" if empty else piece)
                    if limit is not None and held.size > limit:
                        return await self._as_they_come(held, pipe, query, ended)
            answer = await asyncio.shield(ended)
            if not held.on_disk:
                return self.whole(held.read(), answer)
            self._headers["X-ClickHouse-Summary"] = summary(answer)
            return await self._sent(held.pieces())

    def abort(self) -> None:
        """Cut the connection, whatever has not been sent."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _as_they_come(
        self, held: Body, pipe: "_Pipe", query: Query, ended: "asyncio.Future[Answer]"
    ) -> web.StreamResponse:
        self._headers["X-ClickHouse-Summary"] = as_summary(query.progress)
        response, encoder = await self._begun(), self._encoding.encoder()
        for piece in held.pieces():
            await _send(response, encoder.encode(piece))
        held.close()
        while piece := await pipe.read():
            await _send(response, encoder.encode(piece))
        try:
            await asyncio.shield(ended)
        except EngineError as failed:
            text = error_text(failed, self._engine.version, advice(failed))
            await _send(response, encoder.encode(error_in_answer(text, self._tag)) + encoder.end())
            if self._request.transport is not None:
                self._request.transport.close()  # without an end of the last chunk
            return response
        if end := encoder.end():
            await _send(response, end)
        await response.write_eof()
        return response

    async def _sent(self, pieces: Iterable[bytes]) -> web.StreamResponse:
        response, encoder = await self._begun(), self._encoding.encoder()
        for piece in pieces:
            await _send(response, encoder.encode(piece))
        if end := encoder.end():
            await _send(response, end)
        await response.write_eof()
        return response

    async def _begun(self) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers | self._content_encoding())
        await response.prepare(self._request)
        return response

    def _response(self, status: int, body: bytes) -> web.Response:
        headers = self._headers
        if body:
            headers = headers | self._content_encoding()
            body = self._encoding.whole(body)
        return web.Response(status=status, body=body, headers=headers)

    def _content_encoding(self) -> dict[str, str]:
        return {"Content-Encoding": self._encoding.content} if self._encoding.content else {}


class _Pipe:
    """The reading end of a pipe. Closed at the end of the block: the statement that writes into it then ends too."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        os.set_blocking(reading, False)

    async def read(self) -> bytes:
        """What there is, as soon as there is something; nothing at the end."""
        while True:
            try:
                return os.read(self._reading, CHUNK_BYTES)
            except BlockingIOError:
                await self._readable()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._reading, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._reading)

    def __enter__(self) -> "_Pipe":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reading)


async def _send(response: web.StreamResponse, data: bytes) -> None:
    await asyncio.wait_for(response.write(data), SEND_TIMEOUT_S)


def _hold(held: Body, piece: bytes) -> None:
    try:
        held.write(piece)
    except TooLargeError:
        raise error(TOO_MANY_BYTES, "the answer is too large for wait_end_of_query=1: leave that out") from None
