"""Limits on size, number and time, answered in the caller's own API, and what they cost those within them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening
from sidecar_process import until

from sidecar.dialect import Caller, Refusal
from sidecar.gate import Gate, Places
from tracegrad.settings import SidecarSettings

POLICY = {"name": "policy", "policy": "policy"}


@pytest.fixture
async def limited(harness_for: Any, fake: FakeVllm) -> Any:
    """A function that starts a sidecar with these limits, a policy `policy` and a provider `gpt`."""

    async def start(**limits: Any) -> Harness:
        models = ({**POLICY, "upstream": fake.url}, {"name": "gpt", "upstream": fake.url})
        started: Harness = await harness_for(*models, limits=limits)
        return started

    return start


async def raw(url: str, request: bytes) -> tuple[bytes, bool]:
    """What comes back on a connection that sends just this, and whether the other side then closes it."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        with contextlib.suppress(ConnectionError):
            return head + await asyncio.wait_for(reader.read(), 5), True
        return head, True
    finally:
        writer.close()


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


async def test_a_body_that_declares_too_much_is_refused_unread(limited: Any, fake: FakeVllm) -> None:
    harness = await limited(max_body_bytes=1000)
    answer, closed = await raw(harness.url, HEAD + b"content-length: 1000000000000\r\n\r\n" + b"x" * 100)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer
    assert closed
    assert fake.requests == []
    assert (await harness.receiver.one()).attributes["error.type"] == "request_too_large"


async def test_who_asks_first_is_not_told_to_send_what_will_be_refused(limited: Any) -> None:
    harness = await limited(max_body_bytes=1000)
    answer, _ = await raw(harness.url, HEAD + b"expect: 100-continue\r\ncontent-length: 1001\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    head = HEAD + b"expect: 100-continue\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    answer, _ = await raw(harness.url, head)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert b"HTTP/1.1 400 " in answer


async def test_a_body_that_becomes_too_large_is_refused(limited: Any, fake: FakeVllm) -> None:
    harness = await limited(max_body_bytes=1000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    answer = await harness.session.post(f"{harness.url}/v1/messages", data=pieces())
    assert answer.status == 413
    assert (await answer.json())["type"] == "error", "in Anthropic's shape"
    assert fake.requests == []
    just = b'{"model":"policy","messages":[]}'
    answer = await harness.session.post(f"{harness.url}/v1/chat/completions", data=just.ljust(1000))
    assert answer.status == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_an_upload_may_have_a_limit_of_its_own(limited: Any, declared: bool) -> None:
    harness = await limited(max_body_bytes=10, max_upload_bytes=1000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    answer = await harness.session.post(f"{harness.url}/v1/audio/transcriptions", data=b"x" * 1000)
    assert (await answer.json())["length"] == 1000
    answer = await harness.session.post(
        f"{harness.url}/v1/audio/transcriptions", data=b"x" * 2000 if declared else pieces()
    )
    assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")


async def test_more_calls_than_places_wait_and_are_served(limited: Any, fake: FakeVllm) -> None:
    fake.token_delay_s = 0.01
    harness = await limited(max_concurrency=2)
    answers = await asyncio.gather(*(harness.chat({}) for _ in range(8)))
    assert [answer.status for answer in answers] == [200] * 8
    assert fake.most_at_once == 2


@pytest.mark.parametrize("limits", [{"max_waiting": 0}, {"max_wait_s": 0.05}])
async def test_without_a_place_in_time_the_answer_is_429(limited: Any, fake: FakeVllm, limits: dict[str, Any]) -> None:
    harness = await limited(max_concurrency=1, **limits)
    fake.running.clear()
    first = asyncio.create_task(harness.chat({}))
    await until(lambda: fake.requests)
    refused = await harness.chat({})
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    error = (await refused.json())["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    refused = await harness.session.post(f"{harness.url}/v1/messages", json={"model": "policy", "messages": []})
    assert (refused.status, (await refused.json())["error"]["type"]) == (429, "rate_limit_error")
    fake.running.set()
    assert (await first).status == 200
    assert (await harness.chat({})).status == 200
    metrics = await (await harness.session.get(f"{harness.admin}/metrics")).text()
    assert 'tracegrad_sidecar_refusals_total{code="rate_limit_exceeded"} 2' in metrics


async def test_who_gives_up_waiting_takes_no_place_along() -> None:
    places = Places("it", 1, 10, 10.0)
    async with places:
        waiting = [asyncio.create_task(places.__aenter__()) for _ in range(3)]
        await asyncio.sleep(0)
        assert places.waiting == 3
        waiting[0].cancel()
        await asyncio.sleep(0)
    await waiting[1]
    waiting[2].cancel()
    await asyncio.gather(waiting[2], return_exceptions=True)
    await places.__aexit__(None, None, None)
    async with asyncio.timeout(1):
        async with places:
            assert places.waiting == 0


async def test_a_tenant_at_its_limit_leaves_the_others_theirs() -> None:
    gate = Gate(SidecarSettings(max_concurrency=3, max_waiting=0), (), {"small": 1})
    small, big = Caller("small"), Caller("big")
    async with gate.slot(small), gate.slot(big):
        with pytest.raises(Refusal, match="tenant small") as caught:
            async with gate.slot(small):
                pass
        assert caught.value.status == 429
        async with gate.slot(big):
            with pytest.raises(Refusal, match="the sidecar"):
                await gate.slot(big).__aenter__()
    async with gate.slot(small), gate.slot(big), gate.slot(big):
        assert gate.waiting == 0


async def test_workers_share_the_places() -> None:
    gate = Gate(SidecarSettings(max_concurrency=3, max_waiting=0, workers=2))
    async with gate.slot(Caller()), gate.slot(Caller()):
        with pytest.raises(Refusal):
            await gate.slot(Caller()).__aenter__()


@pytest.mark.parametrize("model", ["policy", "gpt"])
async def test_a_call_that_takes_too_long_is_a_504(limited: Any, fake: FakeVllm, model: str) -> None:
    harness = await limited(timeout_s=0.2)
    fake.running.clear()
    answer = await harness.chat({"model": model})
    assert (answer.status, (await answer.json())["error"]["code"]) == (504, "timeout")
    assert (await harness.chat({"model": model, "stream": True})).status in (200, 504)
    spans = await harness.receiver.wait(2)
    assert {span.attributes["error.type"] for span in spans} == {"timeout"}
    assert {span.attributes["tracegrad.trainable"] for span in spans} == {False}
    await until(lambda: fake.aborted == 2)


@pytest.mark.parametrize("model", ["policy", "gpt"])
async def test_a_stream_that_takes_too_long_ends_with_an_error_event(limited: Any, fake: FakeVllm, model: str) -> None:
    fake.token_delay_s = 0.15
    harness = await limited(timeout_s=0.4)
    answer = await harness.chat({"model": model, "stream": True})
    assert answer.status == 200
    *events, last, rest = (await answer.read()).split(b"\n\n")
    assert events
    assert b'"code":"timeout"' in last
    assert rest == b""
    assert (await harness.chat({"model": model})).status == 504, "and the next call is served"
    first, _ = await harness.receiver.wait(2)
    assert (first.attributes["error.type"], first.attributes["tracegrad.trainable"]) == ("timeout", False)


@pytest.mark.parametrize(
    ("path", "body", "last_event"),
    [
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}, b"event: error\n"),
        ("/v1/responses", {"input": "Hi"}, b"event: response.failed\n"),
        ("/v1/completions", {"prompt": "Hi"}, b'data: {"error":'),
    ],
)
async def test_other_apis_end_late_streams_in_their_own_words(
    limited: Any, fake: FakeVllm, path: str, body: dict[str, Any], last_event: bytes
) -> None:
    fake.token_delay_s = 0.15
    harness = await limited(timeout_s=0.4)
    answer = await harness.session.post(f"{harness.url}{path}", json={"model": "policy", "stream": True} | body)
    *_, last, rest = (await answer.read()).split(b"\n\n")
    assert last.startswith(last_event)
    assert b"took longer than 0.4 s" in last
    assert rest == b""


async def test_a_client_that_does_not_read_ends_in_time(harness_for: Any) -> None:
    ended = asyncio.Event()

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            while True:
                await response.write(b"data: " + b"x" * 65536 + b"\n\n")
        finally:
            ended.set()

    app = web.Application()
    app.router.add_post("/v1/chat/completions", flood)
    async with listening(app) as url:
        harness = await harness_for({"name": "gpt", "upstream": url}, limits={"timeout_s": 0.3})
        answer = await harness.chat({"model": "gpt", "stream": True})
        await asyncio.wait_for(ended.wait(), 5)
        assert (await harness.receiver.one()).attributes["error.type"] == "timeout"
        answer.close()


async def test_other_requests_that_take_too_long_end_too(harness_for: Any) -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async def stop_half_way(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        await asyncio.sleep(30)
        return response

    app = web.Application()
    app.router.add_get("/hang", hang)
    app.router.add_get("/half", stop_half_way)
    async with listening(app) as url:
        harness = await harness_for({"name": "gpt", "upstream": url}, limits={"timeout_s": 0.2})
        answer = await harness.session.get(f"{harness.url}/hang")
        assert (answer.status, (await answer.json())["error"]["code"]) == (504, "timeout")
        answer = await harness.session.get(f"{harness.url}/half")
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
