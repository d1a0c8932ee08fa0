"""Upstreams that answer otherwise than they were asked to: nothing leaks, nothing trains, and the record says what."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import fake_completions
import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening
from stand_ins import ReceivedSpan

POLICY = {"policy": "policy"}
ASK: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    "responses": {"input": "Hi"},
}
ENCODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "GZIP": gzip.compress}


def failure(span: ReceivedSpan) -> tuple[Any, Any]:
    named = span.attributes
    assert (named["tracegrad.trainable"], span.status) == (False, 2)
    return named["error.type"], named["tracegrad.untrainable.reason"]


async def serve(answer: Any) -> web.Application:
    app = web.Application()
    app.router.add_post("/{rest:.*}", answer)
    return app


def compressing(fake: FakeVllm, encoding: str, encode: Callable[[bytes], bytes]) -> web.Application:
    """The fake, which compresses whatever is asked for."""

    @web.middleware
    async def middleware(request: web.Request, handler: Any) -> web.StreamResponse:
        if "completions" not in request.path:
            answer: web.StreamResponse = await handler(request)
            return answer
        body = await request.json()
        fake.requests.append(body)
        if body.get("stream"):
            events = fake._events(body)
            packed = encode(b"".join(events))
            answer = web.StreamResponse(headers={"content-type": "text/event-stream", "content-encoding": encoding})
            await answer.prepare(request)
            for place in range(0, len(packed), 7):
                await answer.write(packed[place : place + 7])
            await answer.write_eof()
            return answer
        whole: Any = await handler(request)
        return web.Response(
            body=encode(whole.body),
            status=whole.status,
            content_type=whole.content_type,
            headers={"content-encoding": encoding},
        )

    app = fake.application()
    app.middlewares.append(middleware)
    return app


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_engine_compresses_is_captured_and_hidden_as_ever(
    harness: Harness, harness_for: Any, fake: FakeVllm, encoding: str, stream: bool
) -> None:
    body = {"stream": stream}
    expected = await (await harness.chat(body)).read()
    async with listening(compressing(fake, encoding, ENCODERS[encoding])) as upstream:
        other = await harness_for({"name": "policy", "upstream": upstream, **POLICY})
        answer = await other.chat(body)
        assert await answer.read() == expected
        assert "content-encoding" not in answer.headers
        spans = await harness.receiver.wait(2)  # while the engine can still be asked
    for span in spans:
        assert span.attributes["tracegrad.trainable"] is True
        assert span.json("tracegrad.response.token_ids") == [100, 101, 102, 103, 104]


@pytest.mark.parametrize("api", ["chat/completions", "messages"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("encoding", ["br", "gzip", "gzip, gzip"])
async def test_what_cannot_be_decompressed_reaches_nobody(
    harness_for: Any, fake: FakeVllm, api: str, stream: bool, encoding: str
) -> None:
    async with listening(compressing(fake, encoding, lambda plain: plain)) as upstream:
        harness = await harness_for({"name": "policy", "upstream": upstream, **POLICY})
        asked = ASK[api] | {"model": "policy", "stream": stream}
        answer = await harness.session.post(f"{harness.url}/v1/{api}", json=asked)
        text = await answer.text()
        assert "token_ids" not in text
        assert "error" in text
        assert "cannot be read" in text
        begun = stream and encoding == "gzip"
        assert (answer.status, "content-encoding" in answer.headers) == (200 if begun else 502, False)
    assert failure(await harness.receiver.one()) == ("upstream_died" if begun else "invalid_answer", "error")


@pytest.mark.parametrize("garbage", [b"data: {\n\n", b"data: [1]\n\n", b"data: 7\n\n", b"data:\n\n"])
@pytest.mark.parametrize("api", ASK)
async def test_a_stream_with_garbage_in_it_trains_nothing(
    harness_for: Any, fake: FakeVllm, monkeypatch: pytest.MonkeyPatch, garbage: bytes, api: str
) -> None:
    events, whole = fake._events, fake_completions.events
    monkeypatch.setattr(fake, "_events", lambda body: _with(garbage, events(body)))
    monkeypatch.setattr(fake_completions, "events", lambda *given: _with(garbage, whole(*given)))
    harness = await harness_for({"name": "policy", "upstream": fake.url, **POLICY})
    asked = ASK[api] | {"model": "policy", "stream": True}
    text = await (await harness.session.post(f"{harness.url}/v1/{api}", json=asked)).text()
    translated = api in ("messages", "responses")
    assert ("not a JSON object" in text) is translated
    assert text.endswith("data: [DONE]\n\n") is not translated
    span = await harness.receiver.one()
    assert failure(span) == ("invalid_answer", "incomplete_token_ids")
    assert "not a JSON object" in span.message


def _with(garbage: bytes, events: list[bytes]) -> list[bytes]:
    return [*events[:2], garbage, *events[2:]]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_a_choice_is_an_error(harness_for: Any, stream: bool) -> None:
    async def answer(_: web.Request) -> web.Response:
        empty = json.dumps({"id": "c", "choices": []}).encode()
        body = b"data: " + empty + b"\n\ndata: [DONE]\n\n" if stream else empty
        return web.Response(body=body, content_type="text/event-stream" if stream else "application/json")

    async with listening(await serve(answer)) as upstream:
        harness = await harness_for({"name": "policy", "upstream": upstream, **POLICY})
        assert (await harness.chat({"stream": stream})).status == 200
    assert failure(await harness.receiver.one()) == ("invalid_answer", "error")


@pytest.mark.parametrize("api", ["chat/completions", "messages"])
async def test_a_page_instead_of_an_answer_names_who_sent_it(harness_for: Any, api: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>Bad Gateway</html>", content_type="text/html")

    async with listening(await serve(answer)) as upstream:
        harness = await harness_for(
            {"name": "policy", "upstream": upstream, **POLICY}, {"name": "theirs", "upstream": upstream}
        )
        for model in ("policy", "theirs"):
            got = await harness.session.post(f"{harness.url}/v1/{api}", json=ASK[api] | {"model": model})
            assert got.status == 502
            if (model, api) == ("policy", "messages"):
                assert (await got.json())["error"]["message"] == f"upstream at {upstream} answered 502 Bad Gateway"
        for span in await harness.receiver.wait(2):
            assert span.message == f"upstream at {upstream} answered 502 Bad Gateway"


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (200, b'{"tokens": 3}', (502, "/tokenize answered 200 OK without a `count`: is it a vLLM server?")),
        (200, b"<html>", (502, "/tokenize answered 200 OK without a `count`: is it a vLLM server?")),
        (502, b"<html>", (502, "/tokenize answered 502 Bad Gateway")),
        (400, b'{"error": {"message": "too long"}}', (400, "too long")),
    ],
)
async def test_a_count_that_is_none_is_told(
    harness_for: Any, status: int, body: bytes, wanted: tuple[int, str]
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    async with listening(await serve(answer)) as upstream:
        harness = await harness_for({"name": "policy", "upstream": upstream, **POLICY})
        asked = ASK["messages"] | {"model": "policy"}
        got = await harness.session.post(f"{harness.url}/v1/messages/count_tokens", json=asked)
        message = (await got.json())["error"]["message"]
        told = f"upstream at {upstream}{wanted[1]}" if wanted[1].startswith("/") else wanted[1]
        assert (got.status, message) == (wanted[0], told)


BEGUN = {
    "chat/completions": b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n',
    "completions": b'data: {"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]}\n\n',
    "messages": b'event: message_start\ndata: {"type": "message_start", "message": {"type": "message"}}\n\n',
    "responses": b'data: {"type": "response.created", "response": {"id": "r"}}\n\n',
}
END = {
    "chat/completions": b"data: [DONE]",
    "completions": b"data: [DONE]",
    "messages": b'data: {"type": "message_stop"}',
    "responses": b'data: {"type": "response.completed", "response": {"id": "r", "status": "completed"}}',
}
ERROR = b'data: {"error": {"message": "overloaded"}}\n\n'
CASES: dict[str, tuple[Callable[[str], bytes], tuple[str, str] | None]] = {
    "no end": (lambda api: BEGUN[api], ("upstream_died", "ended before its own end")),
    "nothing": (lambda api: b"", ("upstream_died", "ended before its own end")),
    "an error": (lambda api: BEGUN[api] + ERROR, ("upstream_error", "overloaded")),
    "its end": (lambda api: BEGUN[api] + END[api] + b"\n\n", None),
    "its end without a blank line": (lambda api: BEGUN[api] + END[api], None),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_providers_stream_without_its_end_is_an_error_of_its_call(harness_for: Any, case: str) -> None:
    content, wanted = CASES[case]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=content(request.path.removeprefix("/v1/")), content_type="text/event-stream")

    async with listening(await serve(answer)) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream})
        for api, asked in ASK.items():
            got = await harness.session.post(f"{harness.url}/v1/{api}", json=asked | {"model": "x", "stream": True})
            assert await got.read() == content(api)
        for span in await harness.receiver.wait(len(ASK)):
            if wanted is None:
                assert (span.attributes.get("error.type"), span.status) == (None, 0)
                continue
            assert failure(span) == (wanted[0], "passthrough")
            assert wanted[1] in span.message


async def test_an_error_that_is_null_is_none(harness_for: Any) -> None:
    body = BEGUN["chat/completions"].replace(b'{"choices"', b'{"error": null, "choices"') + b"data: [DONE]\n\n"

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="text/event-stream")

    async with listening(await serve(answer)) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream})
        await (await harness.chat({"stream": True})).read()
    assert "error.type" not in (await harness.receiver.one()).attributes
