"""The lean client against servers that behave and servers that do not: raw sockets, on both event loops."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from tracegrad.http_client import MAX_BUFFERED_BYTES, MAX_HEAD_BYTES, BrokenError, HttpClient, NotSentError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

PLAIN = (
    b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; x=1\r\nX-A: 1\r\nx-a: caf\xc3\xa9\r\n"
    b"Content-Length: 5\r\n\r\nhello"
)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@contextlib.asynccontextmanager
async def engine(handler: Handler) -> AsyncIterator[str]:
    connected: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in connected:
            if not writer.transport.is_closing():
                writer.transport.abort()


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    return head, await reader.readexactly(length)


def answering(*answers: bytes) -> tuple[Handler, list[tuple[bytes, bytes]]]:
    """A handler that gives one answer per request of a connection, and what it was asked."""
    asked: list[tuple[bytes, bytes]] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            asked.append(await request_of(reader))
            writer.write(answer)
            await writer.drain()

    return handler, asked


async def test_a_request_and_its_answer() -> None:
    handler, asked = answering(PLAIN)
    async with engine(handler) as url, HttpClient(2).post(url, "/v1/x?y=%20", {"traceparent": "00"}, b"{}") as reply:
        assert (reply.status, reply.reason, reply.content_type) == (200, "OK", "text/event-stream")
        assert reply.headers.getall("x-a") == ["1", "café"]
        assert await reply.read() == b"hello"
    head, body = asked[0]
    assert head.startswith(b"POST /v1/x?y=%20 HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\ntraceparent: 00\r\n" in head
    assert body == b"{}"


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN])
async def test_a_connection_is_used_again(answer: bytes) -> None:
    handler, asked = answering(answer, answer, answer)
    connections = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await handler(reader, writer)

    async with engine(counted) as url:
        client = HttpClient(2)
        for _ in range(3):
            async with client.post(url, "/", {}, b"{}") as reply:
                assert len(await reply.read()) == 5
        client.close()
    assert (connections, len(asked)) == (1, 3)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ],
)
async def test_a_connection_that_ends_with_its_answer_is_not_used_again(answer: bytes) -> None:
    handler, asked = answering(answer)
    async with engine(handler) as url:
        client = HttpClient(2)
        for _ in range(2):
            async with client.post(url, "/", {}, b"{}") as reply:
                assert await reply.read() == b"hello"
    assert len(asked) == 2


async def test_a_connection_that_the_engine_closed_while_idle_is_not_used() -> None:
    handler, asked = answering(PLAIN)
    async with engine(handler) as url:
        client = HttpClient(2)
        for _ in range(2):
            async with client.post(url, "/", {}, b"{}") as reply:
                await reply.read()
            await asyncio.sleep(0.05)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "closed"),
        (CHUNKED[:-10], "closed"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MAX_HEAD_BYTES + 9), "no end"),
    ],
)
async def test_an_answer_that_breaks_off_is_an_error(answer: bytes, problem: str) -> None:
    handler, _ = answering(answer)
    async with engine(handler) as url:
        with pytest.raises(BrokenError, match=problem):
            async with HttpClient(2).post(url, "/", {}, b"{}") as reply:
                await reply.read()


async def test_what_came_before_a_break_is_read() -> None:
    handler, _ = answering(CHUNKED[:-10])
    async with engine(handler) as url:
        received = b""
        with pytest.raises(BrokenError):
            async with HttpClient(2).post(url, "/", {}, b"{}") as reply:
                while piece := await reply.next():
                    received += piece
    assert received in {b"abc", b"abcd"}


async def test_nobody_listening_is_told_apart(free_port: Callable[[], int]) -> None:
    with pytest.raises(NotSentError, match=r"[Cc]onnect"):
        async with HttpClient(2).post(f"http://127.0.0.1:{free_port()}", "/", {}, b"{}"):
            pass


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid", "."])
async def test_a_host_that_is_none_is_told_apart(host: str) -> None:
    with pytest.raises(NotSentError):
        async with HttpClient(2).post(f"http://{host}:1", "/", {}, b"{}"):
            pass


async def test_an_answer_that_comes_before_the_request_is_out_is_taken() -> None:
    connections = 0

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PLAIN)
        await asyncio.sleep(30)

    async with engine(hasty) as url:
        client = HttpClient(2)
        for _ in range(2):
            async with client.post(url, "/", {}, bytes(64 << 20)) as reply:
                assert await reply.read() == b"hello"
    assert connections == 2


async def test_an_answer_that_is_dropped_closes_the_connection() -> None:
    left = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        assert await reader.read() == b""
        left.set()

    async with engine(endless) as url:
        async with HttpClient(2).post(url, "/", {}, b"{}") as reply:
            assert await reply.next() == b"abc"
        await asyncio.wait_for(left.wait(), 5)


async def test_an_engine_that_is_faster_than_its_reader_waits() -> None:
    sent = 0
    piece = bytes(1 << 16)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(piece) * 1024))
        for _ in range(1024):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    async with engine(flood) as url, HttpClient(2).post(url, "/", {}, b"{}") as reply:
        received = len(await reply.next())
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < len(piece) * 1024, "the kernel's buffers and ours hold a part only"
        largest = 0
        while piece_read := await reply.next():
            largest = max(largest, len(piece_read))
            received += len(piece_read)
    assert received == len(piece) * 1024
    assert largest < 2 * MAX_BUFFERED_BYTES
