"""Anthropic calls that pass to a provider: byte for byte, and read for the record. And how long a prompt would be."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening

from sidecar.anthropic.dialect import MessagesDialect

RECORDED = Path(__file__).parents[2] / "../shared/fixtures/openai_http/anthropic_messages.jsonl"
HELLO = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
EVENTS: tuple[dict[str, Any], ...] = (
    {
        "type": "message_start",
        "message": {
            "id": "msg_made_up",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [],
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 40, "output_tokens": 1},
        },
    },
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "The caf\u00e9."}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "t1", "name": "go", "input": {}},
    },
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"to":'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"\u0141"}'}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
)
PARTS = [
    {"type": "reasoning", "content": "Hm."},
    {"type": "text", "content": "The caf\u00e9."},
    {"type": "tool_call", "id": "t1", "name": "go", "arguments": {"to": "\u0141"}},
]


def sse(events: tuple[dict[str, Any], ...]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in events)


def provider_of(body: bytes, kind: str = "text/event-stream") -> web.Application:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, headers={"content-type": kind})

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    return app


async def test_a_providers_stream_passes_and_is_recorded(harness_for: Any) -> None:
    body = sse(EVENTS)
    async with listening(provider_of(body)) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream})
        request = HELLO | {"system": "Be kind.", "max_tokens": 9, "stream": True, "stop_sequences": ["END"]}
        answer = await harness.session.post(f"{harness.url}/v1/messages", json=request)
        assert await answer.read() == body
    span = await harness.receiver.one()
    assert span.attributes["gen_ai.provider.name"] == "anthropic"
    assert span.attributes["gen_ai.response.id"] == "msg_made_up"
    assert span.attributes["gen_ai.usage.input_tokens"] == 43
    assert span.attributes["gen_ai.usage.output_tokens"] == 9
    assert span.attributes["tracegrad.untrainable.reason"] == "passthrough"
    assert span.json("tracegrad.sampling")["stop"] == ["END"]
    assert [one["role"] for one in span.json("gen_ai.input.messages")] == ["system", "user"]
    assert span.json("gen_ai.output.messages") == [{"role": "assistant", "parts": PARTS, "finish_reason": "tool_calls"}]


async def test_a_providers_stream_that_breaks_off_keeps_what_came(harness_for: Any) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    async with listening(provider_of(sse((*EVENTS[:8], error)))) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream})
        await (await harness.session.post(f"{harness.url}/v1/messages", json=HELLO | {"stream": True})).read()
    span = await harness.receiver.one()
    assert span.json("gen_ai.output.messages")[0]["parts"] == PARTS[:2]


@pytest.mark.parametrize("body", [b"{}", b"[]", b"no json", b'{"type": "message", "content": 3, "usage": []}'])
async def test_odd_answers_of_a_provider_pass_and_are_recorded(harness_for: Any, body: bytes) -> None:
    async with listening(provider_of(body, "application/json")) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream})
        answer = await harness.session.post(f"{harness.url}/v1/messages", json=HELLO)
        assert await answer.read() == body
    assert (await harness.receiver.one()).attributes["tracegrad.trainable"] is False


async def test_the_providers_key_is_sent_where_anthropic_looks_for_it(harness_for: Any) -> None:
    seen: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response({"input_tokens": 7})

    app = web.Application()
    app.router.add_post("/v1/messages{rest:.*}", answer)
    async with listening(app) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream, "api_key": "sk-real"})
        for path in ("/v1/messages", "/v1/messages/count_tokens?beta=true"):
            await harness.session.post(harness.url + path, json=HELLO, headers={"x-api-key": "sk-mine"})
    for headers in seen:
        assert headers["x-api-key"] == "sk-real"
        assert "authorization" not in headers


@pytest.mark.skipif(not RECORDED.exists(), reason="needs the shared fixtures beside the checkout")
async def test_recorded_exchanges_pass_unchanged_and_are_recorded(harness_for: Any) -> None:
    given = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    assert len(given) > 30

    async def play(request: web.Request) -> web.Response:
        one = given[int(request.headers["x-number"])]
        assert await request.json() == one["request"]
        kind = {"json": "application/json", "sse": "text/event-stream; charset=utf-8"}[one["response_kind"]]
        return web.Response(status=one["status"], body=body_of(one), headers={"content-type": kind})

    def body_of(one: dict[str, Any]) -> bytes:
        answer = one["response"]
        return answer.encode() if isinstance(answer, str) else json.dumps(answer, indent=1).encode()

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/messages{rest:.*}", play)
    calls: dict[str, dict[str, Any]] = {}
    async with listening(app) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream})
        for number, one in enumerate(given):
            where = urlsplit(one["uri"])
            url = f"{harness.url}/rollout/{number}{where.path}?{where.query}"
            answer = await harness.session.post(url, json=one["request"], headers={"x-number": str(number)})
            assert (answer.status, await answer.read()) == (one["status"], body_of(one))
            if where.path == "/v1/messages":
                calls[str(number)] = one
        spans = await harness.receiver.wait(len(calls))
    for span in spans:
        one = calls[span.attributes["tracegrad.rollout.id"]]
        assert span.json("gen_ai.input.messages")
        if one["status"] != 200:
            assert span.attributes["error.type"] == str(one["status"])
        elif one["response_kind"] == "json":
            assert span.attributes["gen_ai.response.id"] == one["response"]["id"]
            texts = [block["text"] for block in one["response"]["content"] if block["type"] == "text"]
            parts = span.json("gen_ai.output.messages")[0]["parts"]
            assert "".join(part["content"] for part in parts if part["type"] == "text") == "".join(texts)
        else:
            assert span.attributes["gen_ai.response.id"].startswith("msg_")
            assert span.attributes["gen_ai.usage.output_tokens"] > 0
            assert span.json("gen_ai.output.messages")[0]["finish_reason"] in ("stop", "length", "tool_calls")


async def counted(harness: Harness, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    answer = await harness.session.post(f"{harness.url}/rollout/r/v1/messages/count_tokens", json=body)
    return answer.status, await answer.json()


async def test_a_prompt_is_counted_by_the_engine_that_would_get_it(harness_for: Any) -> None:
    asked: list[dict[str, Any]] = []

    async def tokenize(request: web.Request) -> web.Response:
        asked.append(await request.json())
        assert request.headers["authorization"] == "Bearer sk-engine"
        return web.json_response({"count": 12, "max_model_len": 99, "tokens": [1]})

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    async with listening(app) as upstream:
        model = {"name": "policy", "upstream": upstream, "policy": "policy", "api_key": "sk-engine"}
        harness = await harness_for(model)
        tools = [{"name": "add", "input_schema": {"type": "object"}}]
        extra = {"system": "Be kind.", "tools": tools, "output_config": {"effort": "low"}}
        assert await counted(harness, HELLO | extra) == (200, {"input_tokens": 12})
        status, refused = await counted(harness, HELLO | {"messages": []})
        assert (status, refused["error"]["type"]) == (400, "invalid_request_error")
    assert asked == [
        {
            "model": "policy",
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
            "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
            "chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": True},
        }
    ]
    assert harness.receiver.spans == []


async def test_counting_where_nobody_answers_is_told(harness: Harness, fake: FakeVllm) -> None:
    status, told = await counted(harness, HELLO)
    assert (status, told["error"]["type"]) == (404, "not_found_error")  # an engine without /tokenize
    status, told = await counted(harness, HELLO | {"model": "nope"})
    assert (status, told["error"]["type"]) == (404, "not_found_error")
    answer = await harness.session.post(f"{harness.url}/v1/messages/count_tokens", data=b"{")
    assert (await answer.json())["type"] == "error"


def test_the_system_prompt_is_replaced() -> None:
    dialect = MessagesDialect()
    body = HELLO | {"system": [{"type": "text", "text": "Old"}]}
    assert dialect.system(body) == "Old"
    assert dialect.system(HELLO) == ""
    assert dialect.system(dialect.replace_system(body, "New")) == "New"
    assert dialect.system(body) == "Old"
