"""What is not captured passes through byte for byte; model calls among it are recorded and never train."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening

RECORDED = Path(__file__).parents[2] / "../shared/fixtures/openai_http/interactions.jsonl"


def provider(url: str, **values: Any) -> dict[str, Any]:
    return {"name": "*", "upstream": url, **values}


async def test_any_other_path_is_forwarded_as_it_is(harness: Harness) -> None:
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

    answer = await harness.session.post(f"{harness.url}/echo", data=pieces())
    assert (await answer.json())["length"] == size


async def test_a_compressed_request_reaches_the_upstream_readable(harness: Harness) -> None:
    headers = {"content-encoding": "gzip"}
    answer = await harness.session.post(f"{harness.url}/echo", data=gzip.compress(b"text"), headers=headers)
    assert (await answer.json())["body"] == "text"


@pytest.mark.parametrize("path", ["/update_weights", "/%75pdate_weights", "/pause/", "/collective_rpc"])
async def test_agents_cannot_change_the_engine(harness: Harness, fake: FakeVllm, path: str) -> None:
    answer = await harness.session.post(harness.url + path, json={"update_info": {"path": "/etc/passwd"}})
    assert answer.status == 403
    assert (await answer.json())["error"]["code"] == "control_path"
    assert fake.control == []


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
        unknown = await harness.session.get(f"{harness.url}/v1/models/nope")
        assert unknown.status == 404
        assert (await unknown.json())["error"]["code"] == "model_not_found"


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


def recorded() -> Iterator[dict[str, Any]]:
    with RECORDED.open(encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            if one["api"] in ("chat/completions", "responses", "embeddings", "completions") and one["method"] == "POST":
                yield one


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded OpenAI exchanges are not beside this checkout")
async def test_recorded_exchanges_of_real_providers_pass_unchanged(harness_for: Any) -> None:
    exchanges = list(recorded())

    async def play(request: web.Request) -> web.Response:
        one = exchanges[int(request.headers["x-number"])]
        assert await request.json() == one["request"]
        kind = {"json": "application/json", "sse": "text/event-stream; charset=utf-8"}.get(one["response_kind"])
        text = one["response"] if isinstance(one["response"], str) else json.dumps(one["response"], indent=2)
        return web.Response(status=one["status"], body=text.encode(), headers={"content-type": kind or "text/plain"})

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/{path:.*}", play)
    async with listening(app) as upstream:
        harness = await harness_for(provider(upstream))
        for number, one in enumerate(exchanges):
            url = f"{harness.url}/rollout/{number}/v1/{one['api']}"
            answer = await harness.session.post(url, json=one["request"], headers={"x-number": str(number)})
            direct = await harness.session.post(
                f"{upstream}/v1/{one['api']}", json=one["request"], headers={"x-number": str(number)}
            )
            assert answer.status == one["status"]
            assert answer.headers["content-type"] == direct.headers["content-type"]
            assert await answer.read() == await direct.read()
        requests = {
            span.attributes["tracegrad.rollout.id"]: span
            for span in await harness.receiver.wait_at_least(len(exchanges))
            if span.name != "choice"
        }
    assert len(requests) == len(exchanges) > 100
    for number, one in enumerate(exchanges):
        if one["api"] == "chat/completions" and one["response_kind"] == "json" and one["status"] == 200:
            assert requests[str(number)].attributes["gen_ai.response.id"] == one["response"]["id"]
            assert json.loads(requests[str(number)].attributes["gen_ai.output.messages"])
