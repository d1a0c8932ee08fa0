"""What the record of a call lacks is said on its span, and whatever is lost is counted on /metrics."""

import gzip
from typing import Any

import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening

from sidecar import passthrough
from tracegrad import names

ANSWER = {"id": "a", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}}]}
STREAM = b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' * 2 % (b"x" * 300, b"y" * 300)


async def metrics(harness: Harness) -> str:
    return await (await harness.session.get(f"{harness.admin}/metrics")).text()


def long_json() -> web.Response:
    return web.json_response({**ANSWER, "more": "x" * 500})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: web.json_response(ANSWER), None),
        (lambda: web.Response(body=STREAM[:400], content_type="text/event-stream"), None),
        (long_json, "too_long"),
        (lambda: web.Response(body=STREAM, content_type="text/event-stream"), "too_long"),
        (lambda: web.Response(body=b"Hello", content_type="text/plain"), "no_json"),
        (lambda: web.Response(body=gzip.compress(b"{}"), headers={"content-encoding": "gzip"}), "compressed"),
    ],
)
async def test_an_answer_that_the_record_lacks(
    harness_for: Any, monkeypatch: pytest.MonkeyPatch, answer: Any, reason: str | None
) -> None:
    async def complete(_: web.Request) -> web.Response:
        response: web.Response = answer()
        return response

    monkeypatch.setattr(passthrough, "MAX_COPY_BYTES", 500)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    async with listening(app) as upstream:
        harness = await harness_for({"name": "policy", "upstream": upstream})
        given, expected = await harness.chat({}), answer()
        body = await given.read()
        assert given.status == 200
        assert body == (b"{}" if reason == "compressed" else expected.body), "the client has it all the same"
        span = await harness.receiver.one()
    assert span.attributes.get(names.ANSWER_UNREAD) == reason
    counted = f'tracegrad_sidecar_answers_unread_total{{reason="{reason}"}} 1\n'
    assert (counted in await metrics(harness)) == (reason is not None)


async def test_a_response_that_could_not_be_stored(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for(
        {"name": "policy", "upstream": fake.url, "policy": "policy"}, limits={"stored_responses_bytes": 10}
    )
    assert "tracegrad_sidecar_responses_lost_total 0\n" in await metrics(harness)
    answer = await harness.session.post(f"{harness.url}/v1/responses", json={"model": "policy", "input": "Hi"})
    assert answer.status == 200
    assert "tracegrad_sidecar_responses_lost_total 1\n" in await metrics(harness)
