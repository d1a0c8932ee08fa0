"""What an upstream says of a key is told to the client as it is, and recorded without the key."""

import logging
from typing import Any

import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening

from sidecar.redaction import keys_in, redacted

SAID = "Incorrect API key provided: {}. You can find yours elsewhere."


async def echo_key(request: web.Request) -> web.StreamResponse:
    """Refuses the key that came, whole or in a stream."""
    key = request.headers.get("x-api-key") or request.headers["authorization"].removeprefix("Bearer ")
    if not (await request.json()).get("stream"):
        return web.json_response({"error": {"message": SAID.format(key)}}, status=401)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"error": {"message": "' + SAID.format(key).encode() + b'"}}\n\ndata: [DONE]\n\n')
    return response


def everything(harness: Harness, caplog: pytest.LogCaptureFixture) -> str:
    return str([vars(span) for span in harness.receiver.spans]) + caplog.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("presented", ["authorization", "x-api-key"])
@pytest.mark.parametrize("entry", [{}, {"api_key": "sk-route-SECRET"}, {"policy": "policy"}], ids=str)
async def test_keys_are_not_recorded(
    harness_for: Any, caplog: pytest.LogCaptureFixture, entry: dict[str, Any], presented: str, stream: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", echo_key)
    value = "Bearer client-SECRET" if presented == "authorization" else "client-SECRET"
    async with listening(app) as url:
        harness = await harness_for({"name": "policy", "upstream": url, **entry})
        answer = await harness.chat({"stream": stream}, **{presented.replace("-", "_"): value})
        assert "SECRET" in await answer.text(), "the client gets what the upstream said"
        span = await harness.receiver.one()
    assert span.attributes["tracegrad.trainable"] is False
    assert "SECRET" not in everything(harness, caplog)
    assert "Incorrect API key provided: ***." in str(vars(span))


async def test_a_key_in_any_header_is_not_recorded(harness: Harness, fake: FakeVllm) -> None:
    fake.error = (400, "no such organisation for sk-other-SECRET")
    await harness.chat({}, x_organisation="id=sk-other-SECRET;x")
    span = await harness.receiver.one()
    assert "SECRET" not in str(vars(span))
    assert "no such organisation for ***" in str(vars(span))


def test_placeholders_are_left_in_place() -> None:
    headers = {"Authorization": "Bearer EMPTY", "X-Api-Key": "", "accept": "task-force"}
    assert redacted("EMPTY answer to a task-force", keys_in(headers)) == "EMPTY answer to a task-force"
    assert redacted("bad: abcdef-long, abcdef", keys_in({"api-key": "abcdef"}, "Bearer abcdef-long")) == "bad: ***, ***"
