"""Exchanges with models, played through the sidecar: clients get the very bytes that they would have got without it.

As a provider's model nothing may change. As a policy's, the request gains fields that make an engine tell its tokens:
providers tell none, so there too the answer must come through as it was; engines do, and their tokens are hidden.
Compared are status, body and every header, except those named below. Made-up exchanges always; those recorded with real
providers where the shared fixtures are beside the checkout.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sidecar_harness import listening
from stand_ins import Receiver

from sidecar.dialects import MODEL_CALLS

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures" / "openai_http"
ADDED = {"x-rollout-id", "x-tracegrad-span-id", "x-tracegrad-policy"}
"""What the sidecar adds."""
FRAMING = {"date", "server", "content-length", "transfer-encoding"}
"""What each server writes for itself. (The length may go: a body that could have changed is framed anew.)"""
NATIVE = {"chat/completions", "completions"}
"""APIs that engines speak: a policy's answer is the engine's. Others are translated, and compared elsewhere."""

MADE_UP = Path(__file__).parent / "exchanges.jsonl"
ENGINES = Path(__file__).parent / "engine_exchanges.jsonl"
"""Made up as vLLM answers: `engine` to who asks for token ids and log-probs, `response` to who does not."""

recordings = pytest.mark.skipif(not FIXTURES.exists(), reason="needs the shared fixtures beside the checkout")


def lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def recorded() -> list[dict[str, Any]]:
    """Every model call on record: single ones, those of agent runs, those of Anthropic, and raw streams."""
    runs = itertools.chain.from_iterable(run["calls"] for run in lines(FIXTURES / "agent_runs.jsonl"))
    given = [*lines(FIXTURES / "interactions.jsonl"), *runs, *lines(FIXTURES / "anthropic_messages.jsonl")]
    for file in sorted((FIXTURES / "openai_python_sse").glob("*.sse")):
        options = {"include_usage": True}
        request = {"model": "gpt-4o", "messages": [], "stream": True, "stream_options": options, "logprobs": True}
        given.append(
            {"api": "chat/completions", "method": "POST", "request": request, "status": 200, "response_kind": "sse"}
            | {"response": file.read_text(encoding="utf-8"), "response_headers": {"openai-processing-ms": "7"}}
        )
    return [one for one in given if one["method"].upper() == "POST" and f"/v1/{one['api']}" in MODEL_CALLS]


def body_of(one: dict[str, Any], *, asks: bool = False) -> bytes:
    """What a client gets; one that `asks` an engine for its tokens."""
    answer = one["engine"] if asks and "engine" in one else one["response"]
    return (answer if isinstance(answer, str) else json.dumps(answer, indent=2)).encode()


def headers_of(one: dict[str, Any]) -> dict[str, str]:
    kinds = {"json": "application/json", "sse": "text/event-stream; charset=utf-8"}
    kept = {
        name: value if isinstance(value, str) else ", ".join(value)
        for name, value in (one.get("response_headers") or {}).items()
        if name.lower() not in {"content-type", "content-encoding", "connection", *FRAMING}
    }
    return kept | {
        "content-type": kinds.get(one["response_kind"], "text/plain"),
        "retry-after": "7",
        "x-request-id": "r",
    }


def compared(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower() not in ADDED | FRAMING}


async def play(given: list[dict[str, Any]], harness_for: Any, **route: str) -> list[dict[str, Any]]:
    """Play exchanges, each as a rollout; returns those that did not come through as they were."""
    changed = []

    async def answer(request: web.Request) -> web.StreamResponse:
        one = given[int(request.headers["x-number"])]
        response = web.StreamResponse(status=one["status"], headers=headers_of(one))
        await response.prepare(request)
        content = body_of(one, asks=b"return_token_ids" in await request.read())
        for start in range(0, len(content), 1000):
            await response.write(content[start : start + 1000])
        return response

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/{path:.*}", answer)
    async with listening(app) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream, **route})
        for number, one in enumerate(given):
            sent = {"json": one["request"], "headers": {"x-number": str(number)}}
            path = f"/rollout/{number}/v1/{one['api']}"
            async with harness.session.post(harness.url + path, **sent) as through:
                got = (through.status, compared(through.headers), await through.read())
            if got != (one["status"], compared(headers_of(one)), body_of(one)):
                changed.append(one)
    return changed


@pytest.mark.parametrize("file", [MADE_UP, ENGINES], ids=lambda file: file.stem)
async def test_as_a_providers_made_up_exchanges_come_through(harness_for: Any, file: Path) -> None:
    given = list(lines(file))
    assert len(given) >= 6
    assert await play(given, harness_for) == []


async def test_as_a_policys_made_up_exchanges_come_through(harness_for: Any) -> None:
    given = [one for one in lines(MADE_UP) if one["api"] in NATIVE]
    assert len(given) >= 3
    assert await play(given, harness_for, policy="policy") == []


async def test_an_engines_tokens_are_recorded_and_hidden(harness_for: Any, receiver: Receiver) -> None:
    given = list(lines(ENGINES))
    assert all(body_of(one, asks=True) != body_of(one) for one in given)
    assert await play(given, harness_for, policy="policy") == []
    spans = {span.attributes["tracegrad.rollout.id"]: span for span in await receiver.wait(len(given))}
    for number, one in enumerate(given):
        span = spans[str(number)]
        assert span.json("tracegrad.prompt.token_ids") == one["prompt_token_ids"]
        assert span.json("tracegrad.response.token_ids") == one["token_ids"]
        assert span.json("tracegrad.response.logprobs") == one["logprobs"]


@recordings
async def test_as_a_providers_every_exchange_comes_through(harness_for: Any) -> None:
    given = recorded()
    assert len(given) > 350
    assert await play(given, harness_for) == []


@recordings
async def test_as_a_policys_every_exchange_comes_through(harness_for: Any) -> None:
    given = [one for one in recorded() if one["api"] in NATIVE]
    assert len(given) > 150
    assert await play(given, harness_for, policy="policy") == []
