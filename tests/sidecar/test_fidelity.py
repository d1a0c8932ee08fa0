"""Recorded exchanges with real providers, played through the sidecar: clients get the recorded bytes.

As a provider's model nothing may change. As a policy's, the request gains fields that make an engine tell its tokens;
these providers tell none, so there too the answer must come through as it was recorded. Compared are status, body and
every header, except those named below. Needs the shared fixtures beside the checkout.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sidecar_harness import listening

from sidecar.dialects import MODEL_CALLS

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures" / "openai_http"
ADDED = {"x-rollout-id", "x-tracegrad-span-id", "x-tracegrad-policy"}
"""What the sidecar adds."""
FRAMING = {"date", "server", "content-length", "transfer-encoding"}
"""What each server writes for itself. (The length may go: a body that could have changed is framed anew.)"""
NATIVE = {"chat/completions", "completions"}
"""APIs that engines speak: a policy's answer is the engine's. Others are translated, and compared elsewhere."""

pytestmark = pytest.mark.skipif(not FIXTURES.exists(), reason="needs the shared fixtures beside the checkout")


def lines(name: str) -> Iterator[dict[str, Any]]:
    for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def recorded() -> list[dict[str, Any]]:
    """Every model call on record: single ones, those of agent runs, those of Anthropic, and raw streams."""
    runs = itertools.chain.from_iterable(run["calls"] for run in lines("agent_runs.jsonl"))
    given = [*lines("interactions.jsonl"), *runs, *lines("anthropic_messages.jsonl")]
    for file in sorted((FIXTURES / "openai_python_sse").glob("*.sse")):
        options = {"include_usage": True}
        request = {"model": "gpt-4o", "messages": [], "stream": True, "stream_options": options, "logprobs": True}
        given.append(
            {"api": "chat/completions", "method": "POST", "request": request, "status": 200, "response_kind": "sse"}
            | {"response": file.read_text(encoding="utf-8"), "response_headers": {"openai-processing-ms": "7"}}
        )
    return [one for one in given if one["method"].upper() == "POST" and f"/v1/{one['api']}" in MODEL_CALLS]


def body_of(one: dict[str, Any]) -> bytes:
    answer = one["response"]
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
    """Play exchanges; returns those that did not come through as they were recorded."""
    changed = []

    async def answer(request: web.Request) -> web.StreamResponse:
        one = given[int(request.headers["x-number"])]
        response = web.StreamResponse(status=one["status"], headers=headers_of(one))
        await response.prepare(request)
        content = body_of(one)
        for start in range(0, len(content), 1000):
            await response.write(content[start : start + 1000])
        return response

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/{path:.*}", answer)
    async with listening(app) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream, **route})
        for number, one in enumerate(given):
            sent = {"json": one["request"], "headers": {"x-number": str(number)}}
            async with harness.session.post(f"{harness.url}/v1/{one['api']}", **sent) as through:
                got = (through.status, compared(through.headers), await through.read())
            if got != (one["status"], compared(headers_of(one)), body_of(one)):
                changed.append(one)
    return changed


async def test_as_a_providers_every_exchange_comes_through(harness_for: Any) -> None:
    given = recorded()
    assert len(given) > 350
    assert await play(given, harness_for) == []


async def test_as_a_policys_every_exchange_comes_through(harness_for: Any) -> None:
    given = [one for one in recorded() if one["api"] in NATIVE]
    assert len(given) > 150
    assert await play(given, harness_for, policy="policy") == []
