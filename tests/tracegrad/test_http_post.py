"""Requests over kept connections: every form of answer, and everything that is not a whole one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tracegrad.http_post import HttpAnswer, HttpPoster, parse

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n"


@dataclass
class Server:
    """Takes requests and writes the next of `answers`, byte by byte. None: close without one. Empty: hang."""

    url: str = ""
    answers: list[bytes | None] = field(default_factory=list)
    close_after: bool = False
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
                self.requests.append((head, await reader.readexactly(length)))
                answer = self.answers.pop(0) if self.answers else OK
                for byte in answer or b"":
                    writer.write(bytes([byte]))
                    await writer.drain()
                if answer is None or self.close_after:
                    break
        writer.close()


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    running = Server()
    listener = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield running
    listener.close()


@pytest.fixture
def poster(server: Server) -> HttpPoster:
    return HttpPoster(server.url + "/base/", "text/plain")


async def test_requests_one_after_another_share_a_connection(server: Server, poster: HttpPoster) -> None:
    for number in range(5):
        answer = await poster.post("/path", b"x" * number, 5)
        assert (answer.status, answer.body) == (200, b"ok")
    assert server.connections == 1
    assert [body for _, body in server.requests] == [b"x" * number for number in range(5)]
    head = server.requests[0][0]
    assert head.startswith("POST /base/path HTTP/1.1\r\n")
    assert f"Host: {server.url.removeprefix('http://')}\r\n" in head
    assert "Content-Type: text/plain\r\n" in head
    poster.close()


async def test_requests_at_once_have_a_connection_each(server: Server, poster: HttpPoster) -> None:
    answers = await asyncio.gather(*(poster.post("/", b"x" * 300_000, 5) for _ in range(7)))
    assert [one.body for one in answers] == [b"ok"] * 7
    assert server.connections == 7
    poster.close()


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (CHUNKED, 200, b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n", 503, b""),
        (b"HTTP/1.1 301 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", 301, b""),
    ],
)
async def test_answers_that_end_by_themselves_keep_the_connection(
    server: Server, poster: HttpPoster, answer: bytes, status: int, body: bytes
) -> None:
    server.answers = [answer]
    found = await poster.post("/", b"x", 5)
    assert (found.status, found.body) == (status, body)
    if status == 503:
        assert found.headers["retry-after"] == "7"
    assert (await poster.post("/", b"x", 5)).body == b"ok"
    assert server.connections == 1
    poster.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
    ],
)
async def test_answers_that_end_the_connection(server: Server, poster: HttpPoster, answer: bytes) -> None:
    server.answers, server.close_after = [answer], True
    assert (await poster.post("/", b"x", 5)).body == b"ok"
    assert (await poster.post("/", b"x", 5)).body == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        CHUNKED[:-4],
        OK[:20],
    ],
)
async def test_what_is_no_whole_answer_is_an_error_and_the_next_request_works(
    server: Server, poster: HttpPoster, answer: bytes | None
) -> None:
    server.answers, server.close_after = [answer], True
    with pytest.raises(OSError):
        await poster.post("/", b"x", 5)
    assert (await poster.post("/", b"x", 5)).body == b"ok"


async def test_a_server_that_hangs_is_a_timeout_and_its_connection_is_not_used_again(
    server: Server, poster: HttpPoster
) -> None:
    server.answers = [b""]
    with pytest.raises(TimeoutError):
        await poster.post("/", b"x", 0.1)
    assert (await poster.post("/", b"x", 5)).body == b"ok"
    assert server.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used(server: Server, poster: HttpPoster) -> None:
    server.close_after = True
    for _ in range(3):
        assert (await poster.post("/", b"x", 5)).body == b"ok"
        await asyncio.sleep(0.05)
    assert server.connections == 3


async def test_an_answer_before_the_request_is_out_is_taken() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await reader.read()

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    poster = HttpPoster(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "text/plain")
    for _ in range(2):
        assert (await poster.post("/", b"x" * (30 << 20), 5)).status == 413
    listener.close()


async def test_a_real_server_understands_it() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), headers={"x-type": request.content_type})

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{rest:.*}", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    poster = HttpPoster(f"http://127.0.0.1:{runner.addresses[0][1]}", "application/x-protobuf")
    for size in (0, 1, 3 << 20):
        answer = await poster.post("/v1/traces", b"x" * size, 10)
        assert (answer.status, len(answer.body), answer.headers["x-type"]) == (200, size, "application/x-protobuf")
    poster.close()
    await runner.cleanup()


async def test_no_server_and_no_host_are_errors() -> None:
    for url in ("http://127.0.0.1:1", "http://" + "a" * 70 + ".invalid"):
        with pytest.raises(OSError):
            await HttpPoster(url, "text/plain").post("/", b"", 5)


@pytest.mark.parametrize("answer", [OK, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + OK])
def test_an_answer_is_whole_only_at_its_end(answer: bytes) -> None:
    for end in range(len(answer)):
        assert parse(answer[:end], ended=False) is None
    whole = parse(answer, ended=False)
    assert whole is not None
    assert whole[1]
    assert isinstance(whole[0], HttpAnswer)
    assert whole[0].body == b"ok"


@given(st.binary(max_size=200))
def test_noise_is_no_answer(noise: bytes) -> None:
    for received in (noise, b"HTTP/1.1 200 OK\r\n" + noise, CHUNKED[:46] + noise):
        with contextlib.suppress(ValueError):
            parse(received, ended=False)
