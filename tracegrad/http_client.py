"""A lean HTTP/1.1 client for what happens once per model call: asking an engine, exporting spans.

httptools (the parser of Node.js) does the protocol, this file keeps the connections. A general client takes four times
as long for a request, on the event loop that serves agents; what it offers besides (redirects, cookies, decompression,
proxies) is not needed here. Invariants: a connection carries one request at a time and is used again only if the answer
before it came to its end; an answer that is dropped half-read takes its connection along, by which the server learns
that nobody waits; reading pauses while an answer is read more slowly than it comes.
"""

import asyncio
import contextlib
import functools
import ssl
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools
from multidict import CIMultiDict

CONNECT_S = 10.0
MAX_BUFFERED_BYTES = 1 << 20
"""Of a stream that its client does not read as fast."""
MAX_HEAD_BYTES = 1 << 18


class HttpError(OSError):
    """The server did not answer, or not to the end."""


class NotSentError(HttpError):
    """No connection could be made: the server saw nothing of the request."""


class BrokenError(HttpError):
    """The connection ended, or spoke no HTTP, after the request was sent."""


class Reply(asyncio.Protocol):
    """A connection, and the answer that arrives on it."""

    status: int
    reason: str
    headers: CIMultiDict[str]

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._broken: BrokenError | None = None
        self._begin()

    def _begin(self) -> None:
        self.status, self.reason, self.headers = 0, "", CIMultiDict()
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: deque[bytes] = deque()
        self._buffered = self._head_bytes = 0
        self._has_head = self._complete = self._unbounded = self._stays_open = False

    @property
    def content_type(self) -> str:
        """The media type without its parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_reusable(self) -> bool:
        """Whether the answer came to its end and the connection stays open for another request."""
        if not (self._complete and self._broken is None and self._stays_open):
            return False
        # An answer may come before the request is out: then the rest of the request is still on its way.
        return self._transport is not None and not self._transport.get_write_buffer_size()

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed the connection, as far as is known."""
        return self._broken is None

    async def ask(self, head: bytes, body: bytes) -> None:
        """Send a request; returns when status and headers are there. Raises BrokenError."""
        assert self._transport is not None  # noqa: S101 - it is connected
        self._begin()
        self._transport.writelines((head, body))
        while not self._has_head:
            await self._change()

    async def read(self) -> bytes:
        """The whole body. Raises BrokenError."""
        self._unbounded = True
        self._go_on()
        while not self._complete:
            await self._change()
        return b"".join(self._pieces)

    async def next(self) -> bytes:
        """What has arrived of the body, waiting for some; empty at its end. Raises BrokenError."""
        while not self._pieces:
            if self._complete:
                return b""
            await self._change()
        received = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        self._go_on()
        return received

    def abort(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._transport.abort()

    async def _change(self) -> None:
        if self._broken is not None:
            raise self._broken
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _go_on(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = BrokenError(why)
        self.abort()
        self._wake()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._complete:
            self._break("it sent what nobody asked for")
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(f"what it sent is no HTTP ({error})")
            return
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._break("its headers have no end")
        elif self._buffered > MAX_BUFFERED_BYTES and not self._unbounded and not self._paused and not self._complete:
            self._paused = True
            assert self._transport is not None  # noqa: S101 - it is connected
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; where nothing else measures a body, that is its end."""
        measured = {"content-length", "transfer-encoding"} & {name.lower() for name in self.headers}
        if self._has_head and not measured and exc is None:
            self._complete = True
        self._break("the connection was closed" if exc is None else str(exc) or type(exc).__name__)

    # Called by the parser.

    def on_status(self, text: bytes) -> None:
        """The reason phrase."""
        self.reason += text.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        """The head has ended; that of an interim answer is forgotten."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.status, self.reason, self.headers = 0, "", CIMultiDict()
            return
        self._has_head = True
        self._stays_open = self._parser.should_keep_alive()
        self._wake()

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(piece)
        self._buffered += len(piece)
        self._wake()

    def on_message_complete(self) -> None:
        """The body has ended."""
        self._complete = self._has_head
        self._wake()


class HttpClient:
    """Connections to servers, as many at once as there are requests, kept between requests for `keepalive_s`.

    Give less than the time after which the server closes an idle one, so that no request is sent into a closed one.
    `tls` is asked once, when an https address comes.
    """

    def __init__(self, keepalive_s: float, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> None:
        self._keepalive_s = keepalive_s
        self._idle: defaultdict[str, list[Reply]] = defaultdict(list)
        self._tls = functools.cache(tls)

    @contextlib.asynccontextmanager
    async def post(self, url: str, path: str, headers: Mapping[str, str], body: bytes) -> AsyncIterator[Reply]:
        """POST to `url` + `path` (raw, with its query). Raises NotSentError and BrokenError.

        The connection is kept where the block read the answer to its end, and closed where it did not.
        """
        base = urlsplit(url)
        head = [f"POST {base.path}{path} HTTP/1.1\r\nhost: {base.netloc}\r\ncontent-length: {len(body)}\r\n"]
        head += [f"{name}: {value}\r\n" for name, value in headers.items()]
        head.append("\r\n")
        reply = await self._connection(url)
        try:
            await reply.ask("".join(head).encode("utf-8", "surrogateescape"), body)
            yield reply
        finally:
            if reply.is_reusable:
                reply.idle_since = time.monotonic()
                self._idle[url].append(reply)
            else:
                reply.abort()

    def close(self) -> None:
        """Close what is idle."""
        for kept in self._idle.values():
            for reply in kept:
                reply.abort()
        self._idle.clear()

    async def _connection(self, url: str) -> Reply:
        kept = self._idle[url]
        while kept:
            reply = kept.pop()
            if reply.is_open and time.monotonic() - reply.idle_since < self._keepalive_s:
                return reply
            reply.abort()
        base = urlsplit(url)
        tls = self._tls() if base.scheme == "https" else None
        port = base.port or (443 if tls else 80)
        try:
            async with asyncio.timeout(CONNECT_S):
                _, made = await asyncio.get_running_loop().create_connection(Reply, base.hostname or "", port, ssl=tls)
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError; a host may be no name at all
            raise NotSentError(str(error) or f"no connection within {CONNECT_S:g} s") from error
        return made
