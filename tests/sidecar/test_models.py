"""Model lists: one upstream's own passes as it is, several are put together, refusals say why."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening
from yarl import URL

BAD_KEY = {
    "error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}
}
PAGE = {
    "data": [{"type": "model", "id": "claude-a", "display_name": "A", "created_at": "2025-01-01T00:00:00Z"}],
    "has_more": False,
    "first_id": "claude-a",
    "last_id": "claude-a",
}


@contextlib.asynccontextmanager
async def upstream(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[tuple[str, list[str]]]:
    """A provider; its URL, and what it is asked."""
    asked: list[str] = []

    async def models(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return answer(request)

    app = web.Application()
    app.router.add_get("/v1/models{rest:.*}", models)
    async with listening(app) as url:
        yield url, asked


def refuses(_: web.Request) -> web.Response:
    return web.json_response(BAD_KEY, status=401, headers={"www-authenticate": "Bearer"})


async def test_the_list_of_the_only_upstream_passes_as_it_is(harness_for: Any) -> None:
    text = b'{ "data" : [{"id": "any", "odd": 1.50}], "object": "list" }'

    def answer(_: web.Request) -> web.Response:
        return web.Response(body=text, content_type="application/json", headers={"x-request-id": "r7"}, status=203)

    async with upstream(answer) as (url, asked):
        harness: Harness = await harness_for({"name": "*", "upstream": url})
        for path in ("/v1/models?limit=5&after_id=b%2Fc", "/v1/models/org%2Fbig?x=1"):
            async with harness.session.get(URL(f"{harness.url}/rollout/r{path}", encoded=True)) as got:
                assert (got.status, got.headers["x-request-id"], await got.read()) == (203, "r7", text)
            assert asked[-1] == path
    assert len(asked) == 2


@pytest.mark.parametrize("others", [0, 1])
async def test_a_refusal_passes_on(harness_for: Any, free_port: Callable[[], int], fake: FakeVllm, others: int) -> None:
    async with upstream(refuses) as (url, _), upstream(refuses) as (second, _):
        gone = {"name": "gone", "upstream": f"http://127.0.0.1:{free_port()}", "policy": "policy"}
        entries = [{"name": "*", "upstream": url}, gone, {"name": "b", "upstream": second}]
        harness: Harness = await harness_for(*(entries if others else entries[:1]))
        async with harness.session.get(f"{harness.url}/v1/models") as got:
            assert (got.status, await got.json()) == (401, BAD_KEY)
            assert got.headers["www-authenticate"] == "Bearer"
        async with openai.AsyncOpenAI(base_url=f"{harness.url}/v1", api_key="bad", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
                await client.models.list()


async def test_refusals_that_differ_are_a_502_and_one_list_is_enough(harness_for: Any, fake: FakeVllm) -> None:
    def broken(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async with upstream(refuses) as (url, _), upstream(broken) as (second, _):
        harness: Harness = await harness_for({"name": "*", "upstream": url}, {"name": "b", "upstream": second})
        assert (await harness.session.get(f"{harness.url}/v1/models")).status == 502
    async with upstream(refuses) as (url, _):
        engine = {"name": "policy", "upstream": fake.url, "policy": "policy"}
        harness = await harness_for({"name": "*", "upstream": url}, engine)
        listed = await (await harness.session.get(f"{harness.url}/v1/models")).json()
        assert [one["id"] for one in listed["data"]] == ["policy"]


async def test_a_model_that_no_list_has_is_asked_for_where_its_calls_go(harness_for: Any, fake: FakeVllm) -> None:
    def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": []})
        return web.Response(body=b'{"id" : "alias"}', content_type="application/json")

    async with upstream(answer) as (url, asked):
        harness: Harness = await harness_for(
            {"name": "policy", "upstream": fake.url, "policy": "policy"},
            {"name": "other-*", "upstream": url},
            {"name": "renamed-*", "upstream": url, "served": "of/theirs"},
        )
        for name, path in (("other-1", "/v1/models/other-1"), ("renamed-1", "/v1/models/of/theirs")):
            got = await harness.session.get(f"{harness.url}/v1/models/{name}?x=1")
            assert (got.status, await got.read()) == (200, b'{"id" : "alias"}')
            assert asked[-1] == f"{path}?x=1"
        assert (await harness.session.get(f"{harness.url}/v1/models/policy")).status == 200
        unknown = await harness.session.get(f"{harness.url}/v1/models/nobody")
        assert (unknown.status, (await unknown.json())["error"]["code"]) == (404, "model_not_found")


async def test_anthropics_list_passes_to_its_clients(harness_for: Any, fake: FakeVllm) -> None:
    def answer(request: web.Request) -> web.Response:
        if "anthropic-version" not in request.headers:
            return web.json_response({"type": "error", "error": {"type": "invalid_request_error"}}, status=400)
        return web.Response(text=json.dumps(PAGE, indent=3), content_type="application/json")

    async with upstream(answer) as (url, asked):
        harness: Harness = await harness_for(
            {"name": "policy", "upstream": fake.url, "policy": "policy"}, {"name": "claude-*", "upstream": url}
        )
        async with anthropic.AsyncAnthropic(base_url=harness.url, api_key="k", max_retries=0) as client:
            page = await client.models.list(limit=7, after_id="x")
        assert [one.display_name for one in page.data] == ["A"]
        assert asked == ["/v1/models?after_id=x&limit=7"]
        headers = {"anthropic-version": "2023-06-01"}
        got = await harness.session.get(f"{harness.url}/v1/models", headers=headers)
        assert await got.text() == json.dumps(PAGE, indent=3)
        listed = await (await harness.session.get(f"{harness.url}/v1/models")).json()
        assert [one["id"] for one in listed["data"]] == ["policy"]


async def test_a_replica_that_is_gone_is_passed_over(
    harness_for: Any, fake: FakeVllm, free_port: Callable[[], int]
) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    harness: Harness = await harness_for({"name": "*", "upstream": [gone, fake.url], "policy": "policy"})
    for _ in range(4):
        assert (await harness.session.get(f"{harness.url}/v1/models")).status == 200
