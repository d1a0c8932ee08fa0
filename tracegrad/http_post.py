"""POST requests to one server over kept connections: what an exporter needs of HTTP/1.1, and nothing else.

A general client takes several times as long for a request, on the event loop that serves agents; an exporter sends a
hundred a second. Redirects, cookies, compression and proxies are not followed, kept or used. Whatever is not a whole
answer is an OSError, and its connection is never used again.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

IDLE_S = 15.0
"""Connections that were idle for longer are not used: servers close them, and a request may cross with that."""
MAX_ANSWER_BYTES = 4 << 20
BODYLESS = {204, 304}
END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True)
class HttpAnswer:
    """`headers` by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BrokenAnswerError(OSError):
    """What came is not an answer."""


class HttpPoster:
    """Connections to the server of `base`, as many at once as there are requests. `close` ends them."""

    def __init__(self, base: str, content_type: str) -> None:
        parts = urlsplit(base)
        self._tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._headers = f" HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: {content_type}\r\nContent-Length: "
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes, timeout_s: float) -> HttpAnswer:
        """The answer, whatever its status. Raises OSError when there is none, TimeoutError included."""
        head = f"POST {self._path}{path}{self._headers}{len(body)}\r\n\r\n".encode()
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._kept() or await self._connected()
                answer = await connection.ask(head, body)
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        if connection.may_be_kept:
            self._idle.append(connection)
        else:
            connection.abort()
        return answer

    def close(self) -> None:
        """End the connections that are idle."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _kept(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.used_at > time.monotonic() - IDLE_S:
                return connection
            connection.abort()
        return None

    async def _connected(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls or None)
        except UnicodeError as error:
            raise OSError(f"{self._host!r} is no name of a host: {error}") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self.used_at = 0.0
        self.may_be_kept = False
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[HttpAnswer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Of a stream protocol; uvloop's has the methods and not the base class.
        self._transport, self.is_open = cast(asyncio.Transport, transport), True

    async def ask(self, head: bytes, body: bytes) -> HttpAnswer:
        """Send a request and wait for its answer. Raises OSError."""
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("the server closed the connection")
        self._received.clear()
        self.may_be_kept = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.writelines((head, body))
        return await self._answer

    def abort(self) -> None:
        """End the connection."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # nobody asked
            return
        self._received += data
        self._look(ended=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._answer is None or self._answer.done():
            return
        self._look(ended=exc is None)
        if not self._answer.done():
            said = f"the server closed the connection before it answered: {exc or 'end of stream'}"
            self._answer.set_exception(ConnectionResetError(said))

    def _look(self, *, ended: bool) -> None:
        """Answer if what came is whole."""
        assert self._answer is not None  # noqa: S101 - asked for
        try:
            if len(self._received) > MAX_ANSWER_BYTES:
                raise BrokenAnswerError("the answer is too large")
            found = parse(bytes(self._received), ended=ended)
        except (ValueError, OSError) as error:
            broken = error if isinstance(error, OSError) else BrokenAnswerError(f"the answer is not HTTP: {error}")
            self._answer.set_exception(broken)
            return
        if found is not None:
            answer, keep = found
            # An answer may come before the request is out: then what is still to be sent is of no use.
            unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
            self.may_be_kept = keep and not ended and not unsent
            self.used_at = time.monotonic()
            self._answer.set_result(answer)


def parse(received: bytes, *, ended: bool) -> tuple[HttpAnswer, bool] | None:
    """The answer and whether its connection may be used again; None while more must come. Raises ValueError."""
    head, separator, body = received.partition(END_OF_HEAD)
    if not separator:
        if not b"HTTP/1.".startswith(received[:7]):
            raise ValueError(f"it begins with {received[:20]!r}")
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"it begins with {first[:20]!r}")
    status = int(rest[:3])
    if 100 <= status < 200:
        return parse(body, ended=ended) if body else None
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    keep = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    if status in BODYLESS:
        return HttpAnswer(status, headers, b""), keep and not body
    if "chunked" in headers.get("transfer-encoding", "").lower():
        content = _chunks(body)
        return None if content is None else (HttpAnswer(status, headers, content), keep)
    if (length := headers.get("content-length")) is not None:
        size = int(length)
        if size < 0:
            raise ValueError(f"its length is {size}")
        return None if len(body) < size else (HttpAnswer(status, headers, body[:size]), keep and len(body) == size)
    return (HttpAnswer(status, headers, body), False) if ended else None


def _chunks(body: bytes) -> bytes | None:
    """What a chunked body holds; None while more must come. Trailers are passed over."""
    parts: list[bytes] = []
    while True:
        line, separator, rest = body.partition(b"\r\n")
        if not separator:
            return None
        size = int(line.partition(b";")[0], 16)
        if size < 0:
            raise ValueError("a chunk has a negative size")
        if size == 0:
            return b"".join(parts) if rest.startswith(b"\r\n") or END_OF_HEAD in rest else None
        if len(rest) < size + 2:
            return None
        parts.append(rest[:size])
        body = rest[size + 2 :]
