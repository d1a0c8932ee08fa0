"""What is not captured passes through byte for byte; model calls among it are recorded and never train."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening
from stand_ins import ReceivedSpan

from sidecar.dialects import MODEL_CALLS

EXCHANGES = Path(__file__).parent / "exchanges.jsonl"
"""Made up, in the shape of the recorded ones."""

RECORDED = Path(__file__).parents[2] / "../shared/fixtures/openai_http/interactions.jsonl"


def provider(url: str, **values: Any) -> dict[str, Any]:
    return {"name": "*", "upstream": url, **values}


async def test_any_other_path_is_forwarded_as_it_is(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for(provider(fake.url))
    path = "/echo/a%2Fb//c?x=1&y=%20z"
    headers = {"x-custom": "kept", "authorization": "Bearer mine", "connection": "x-drop", "x-drop": "1", "te": "gzip"}
    answer = await harness.session.put(harness.url + path, data=b"\x00body", headers=headers)
    assert answer.status == 201
    assert answer.headers["x-from-upstream"] == "yes"
    seen = await answer.json()
    assert (seen["method"], seen["path"], seen["body"]) == ("PUT", path, "\x00body")
    assert seen["headers"]["x-custom"] == "kept"
    assert seen["headers"]["authorization"] == "Bearer mine"
    assert seen["headers"]["content-length"] == "5"
    assert not {"x-drop", "te"} & set(seen["headers"])
    assert harness.receiver.spans == []


async def test_a_body_of_any_size_is_streamed_both_ways(harness: Harness) -> None:
    size = 70 << 20  # more than a captured request may have

    async def pieces() -> Any:
        for _ in range(70):
            yield bytes(1 << 20)

    answer = await harness.session.post(f"{harness.url}/v1/audio/transcriptions", data=pieces())
    assert (await answer.json())["length"] == size


async def test_a_compressed_request_reaches_the_upstream_readable(harness: Harness) -> None:
    headers = {"content-encoding": "gzip"}
    url = f"{harness.url}/v1/audio/transcriptions"
    answer = await harness.session.post(url, data=gzip.compress(b"text"), headers=headers)
    assert (await answer.json())["body"] == "text"


async def test_a_model_without_a_policy_is_recorded_and_untouched(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for(provider(fake.url, api_key="sk-secret"))
    for stream in (False, True):
        answer = await harness.chat({"stream": stream, "n": 2}, at="/rollout/r1/v1", authorization="Bearer caller")
        direct = await harness.session.post(f"{fake.url}/v1/chat/completions", json=fake.requests[-1])
        assert await answer.read() == await direct.read()
        assert "x-tracegrad-policy" not in answer.headers
        assert "return_token_ids" not in fake.requests[-2]
        assert fake.headers[-2]["authorization"] == "Bearer sk-secret"
    for span in await harness.receiver.wait(6):
        if span.name == "chat policy":
            assert span.attributes["gen_ai.response.id"] == "chatcmpl-1"
        else:
            assert span.attributes["tracegrad.untrainable.reason"] == "passthrough"
            assert "tracegrad.policy.name" not in span.attributes
        assert "sk-secret" not in str(span)


async def test_other_model_calls_of_a_policy_are_recorded_as_passthrough(harness: Harness) -> None:
    answer = await harness.session.post(
        f"{harness.url}/rollout/r1/v1/embeddings", json={"model": "policy", "input": "x"}
    )
    assert (await answer.json())["usage"] == {"prompt_tokens": 4}
    span = await harness.receiver.one()
    assert span.name == "embeddings policy"
    assert span.attributes["tracegrad.rollout.id"] == answer.headers["x-rollout-id"] == "r1"
    assert span.attributes["tracegrad.trainable"] is False
    assert span.attributes["tracegrad.untrainable.reason"] == "passthrough"
    assert span.attributes["gen_ai.usage.input_tokens"] == 4


async def test_models_of_all_upstreams_are_merged(harness_for: Any, fake: FakeVllm) -> None:
    async def models(request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer sk-other"
        listed = [{"id": "policy", "owned_by": "other"}, {"id": "org/big", "owned_by": "other"}]
        return web.json_response({"object": "list", "data": listed})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with listening(app) as other:
        harness = await harness_for(
            {"name": "policy", "upstream": f"{fake.url}/v1/", "policy": "policy"}, provider(other, api_key="sk-other")
        )
        listed = await (await harness.session.get(f"{harness.url}/rollout/r/v1/models")).json()
        assert [(one["id"], one["owned_by"]) for one in listed["data"]] == [("policy", "vllm"), ("org/big", "other")]
        one = await harness.session.get(f"{harness.url}/v1/models/org/big")
        assert (await one.json())["id"] == "org/big"
        assert (await harness.session.get(f"{harness.url}/v1/models/nope")).status == 404, "says its provider"


async def test_calls_go_where_their_model_says(harness_for: Any, fake: FakeVllm, another_fake: Any) -> None:
    async with another_fake() as other:
        harness = await harness_for({"name": "policy", "upstream": fake.url, "policy": "policy"}, provider(other.url))
        await harness.chat({"model": "policy"})
        await harness.chat({"model": "gpt-5"})
        assert [one["model"] for one in fake.requests] == ["policy"]
        assert [one["model"] for one in other.requests] == ["gpt-5"]


async def test_a_call_without_a_model_needs_one_only_where_that_is_unclear(
    harness: Harness, harness_for: Any, fake: FakeVllm
) -> None:
    assert (await harness.session.post(f"{harness.url}/v1/chat/completions", json={"messages": []})).status == 200
    routes = [{"name": name, "upstream": fake.url} for name in ("a", "b")]
    unclear = await harness_for(*routes)
    answer = await unclear.session.post(f"{unclear.url}/v1/chat/completions", json={"messages": []})
    assert answer.status == 400
    assert (await answer.json())["error"]["code"] == "missing_model"


def exchanges(file: Path) -> list[dict[str, Any]]:
    """The model calls in a file of exchanges, one a line: request, answer, and of which kind the answer is."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [one for one in lines if one["method"] == "POST" and f"/v1/{one['api']}" in MODEL_CALLS]


async def replay(given: list[dict[str, Any]], harness_for: Any) -> list[ReceivedSpan]:
    """Play exchanges through a sidecar: nothing may change. Returns the span of each."""

    async def play(request: web.Request) -> web.Response:
        one = given[int(request.headers["x-number"])]
        assert await request.json() == one["request"]
        kind = {"json": "application/json", "sse": "text/event-stream; charset=utf-8"}.get(one["response_kind"])
        text = one["response"] if isinstance(one["response"], str) else json.dumps(one["response"], indent=2)
        return web.Response(status=one["status"], body=text.encode(), headers={"content-type": kind or "text/plain"})

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/{path:.*}", play)
    async with listening(app) as upstream:
        harness = await harness_for(provider(upstream))
        for number, one in enumerate(given):
            path, headers = f"/v1/{one['api']}", {"x-number": str(number)}
            answer = await harness.session.post(
                f"{harness.url}/rollout/{number}{path}", json=one["request"], headers=headers
            )
            direct = await harness.session.post(upstream + path, json=one["request"], headers=headers)
            assert answer.status == one["status"]
            assert answer.headers["content-type"] == direct.headers["content-type"]
            assert await answer.read() == await direct.read()
        spans = {
            span.attributes["tracegrad.rollout.id"]: span
            for span in await harness.receiver.wait_at_least(len(given))
            if span.name != "choice"
        }
    assert len(spans) == len(given)
    for number, one in enumerate(given):
        if one["api"] == "chat/completions" and one["response_kind"] == "json" and one["status"] == 200:
            assert spans[str(number)].attributes["gen_ai.response.id"] == one["response"]["id"]
            assert spans[str(number)].json("gen_ai.output.messages")
    return [spans[str(number)] for number in range(len(given))]


async def test_exchanges_with_other_providers_pass_unchanged_and_are_recorded(harness_for: Any) -> None:
    spans = await replay(exchanges(EXCHANGES), harness_for)
    names = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.conversation.id", "error.type")
    assert [tuple(span.attributes.get(name) for name in names) for span in spans] == [
        ("chat", "openai", None, None),
        ("chat", "openai", None, None),
        ("chat", "openai", None, "429"),
        ("chat", "openai", "conv_made_up", None),
        ("embeddings", "openai", None, None),
        ("chat", "anthropic", None, None),
    ]
    whole, stream = (span.json("gen_ai.output.messages") for span in spans[:2])
    assert whole[0]["parts"][0]["arguments"] == {"town": "\u0141\u00f3d\u017a"}
    assert stream[0]["parts"] == [{"type": "text", "content": "One, two, thr\u00e9e."}]
    assert spans[2].message == "You are asking too often."


@pytest.mark.skipif(not RECORDED.exists(), reason="needs the shared fixtures beside the checkout")
async def test_recorded_exchanges_of_real_providers_pass_unchanged(harness_for: Any) -> None:
    given = exchanges(RECORDED)
    assert len(given) > 100
    await replay(given, harness_for)


ODD = {
    "half a character": b'{"model": "x", "messages": [{"role": "user", "content": "a\\ud83db"}]}',
    "NaN": b'{"model": "x", "temperature": NaN, "messages": [{"role": "user", "content": "a\xef\xbf\xbdb"}]}',
    "no JSON": b"not json",
    "no object": b'["a"]',
    "deep": b"[" * 100_000,
}
"""What orjson refuses; some of it is JSON to others."""


@pytest.fixture
async def echoing() -> Any:
    """The URL of a provider that answers with what it got."""

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), content_type="text/plain")

    app = web.Application()
    app.router.add_post("/v1/{rest:.*}", echo)
    async with listening(app) as url:
        yield url


@pytest.mark.parametrize("kind", ODD)
async def test_a_provider_gets_whatever_is_sent(harness_for: Any, fake: FakeVllm, echoing: str, kind: str) -> None:
    policy = {"name": "policy", "upstream": fake.url, "policy": "policy"}
    harness = await harness_for(provider(echoing), policy)
    for api in ("chat/completions", "responses", "messages", "messages/count_tokens"):
        got = await harness.session.post(f"{harness.url}/v1/{api}", data=ODD[kind])
        assert (got.status, await got.read()) == (200, ODD[kind])
    spans = await harness.receiver.wait(3)
    assert {span.attributes["tracegrad.untrainable.reason"] for span in spans} == {"passthrough"}
    assert {span.attributes["gen_ai.provider.name"] for span in spans} == {"openai", "anthropic"}
    chat = next(span for span in spans if span.attributes["gen_ai.provider.name"] == "openai")
    if ODD[kind].startswith(b"{"):
        assert chat.name == "chat x"
        read = [span.json("gen_ai.input.messages") for span in spans if "gen_ai.input.messages" in span.attributes]
        assert [{"role": "user", "parts": [{"type": "text", "content": "a\ufffdb"}]}] in read
    else:
        assert {span.name for span in spans} == {"chat"}
        assert not any(span.attributes.get("gen_ai.input.messages") for span in spans)


@pytest.mark.parametrize("kind", ODD)
async def test_a_policy_gets_no_bad_json(harness_for: Any, fake: FakeVllm, echoing: str, kind: str) -> None:
    harness = await harness_for({"name": "*", "upstream": fake.url, "policy": "policy"}, provider(echoing, name="p"))
    got = await harness.session.post(f"{harness.url}/v1/chat/completions", data=ODD[kind])
    assert (got.status, (await got.json())["error"]["code"]) == (400, "invalid_json")
    assert fake.requests == []


async def test_an_alias_keeps_odd_values(harness_for: Any, echoing: str) -> None:
    harness = await harness_for(provider(echoing, served="theirs"))
    got = await harness.session.post(f"{harness.url}/v1/chat/completions", data=ODD["half a character"])
    sent = json.loads(await got.read())
    assert (sent["model"], sent["messages"][0]["content"]) == ("theirs", "a\ud83db")


async def test_a_providers_failure_inside_a_stream_is_an_error_of_its_call(harness_for: Any) -> None:
    async def fail(request: web.Request) -> web.StreamResponse:
        failing = {
            "/v1/chat/completions": b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n',
            "/v1/responses": b'event: error\ndata: {"type": "error", "message": "overloaded"}\n\n',
            "/v1/messages": b'event: error\ndata: {"type": "error", "error": {"message": "overloaded"}}\n\n',
        }
        return web.Response(body=failing[request.path], content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/{rest:.*}", fail)
    async with listening(app) as upstream:
        harness = await harness_for(provider(upstream))
        for api in ("chat/completions", "responses", "messages"):
            got = await harness.session.post(f"{harness.url}/v1/{api}", json={"model": "x", "stream": True})
            assert (got.status, b"overloaded" in await got.read()) == (200, True)
        for span in await harness.receiver.wait(3):
            assert (span.attributes["error.type"], span.message) == ("upstream_error", "overloaded")
