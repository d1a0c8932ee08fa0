"""What goes wrong reaches the client as it should, and is recorded: exactly one span per call, with an error."""

import asyncio
import json
from typing import Any

import aiohttp
import openai
import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness
from stand_ins import ReceivedSpan

from tracegrad.settings import SidecarSettings


def reason(span: ReceivedSpan) -> tuple[Any, Any, int]:
    named = span.attributes
    assert named["tracegrad.trainable"] is False
    return named["error.type"], named["tracegrad.untrainable.reason"], span.status


async def test_no_upstream_is_a_502_in_openais_shape(harness_for: Any, free_port: Any) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    harness = await harness_for({"name": "*", "upstream": url, "policy": "policy"})
    answer = await harness.chat({}, at="/rollout/r9/v1")
    assert answer.status == 502
    error = (await answer.json())["error"]
    assert error["code"] == "upstream_unreachable"
    assert url in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-rollout-id"] == "r9"
    span = await harness.receiver.one()
    assert reason(span) == ("upstream_unreachable", "error", 2)
    assert span.attributes["tracegrad.rollout.id"] == "r9"
    assert (await harness.session.get(f"{harness.url}/v1/models")).status == 502
    assert (await harness.session.get(f"{harness.url}/version")).status == 502
    assert (await harness.session.get(f"{harness.admin}/readyz")).status == 503


async def test_errors_of_the_upstream_pass_through(harness: Harness, fake: FakeVllm) -> None:
    fake.error = (400, "max_tokens is too large")
    for stream in (False, True):
        answer = await harness.chat({"stream": stream})
        assert answer.status == 400
        assert (await answer.json())["error"]["message"] == "max_tokens is too large"
    spans = await harness.receiver.wait(2)
    assert [reason(span) for span in spans] == [("400", "error", 2)] * 2
    assert spans[0].message == "max_tokens is too large"


@pytest.mark.parametrize("garbage", [b"", b"{", b"[1]"])
async def test_an_answer_that_is_no_json_object_passes_through_and_is_an_error(
    harness: Harness, fake: FakeVllm, garbage: bytes
) -> None:
    fake.garbage = garbage
    answer = await harness.chat({})
    assert (answer.status, await answer.read()) == (200, garbage)
    assert reason(await harness.receiver.one()) == ("invalid_answer", "error", 2)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"model": "\xff"}', b'{"model": "\\ud800"}'])
async def test_a_body_that_is_no_json_object_is_a_400(harness: Harness, fake: FakeVllm, body: bytes) -> None:
    answer = await harness.session.post(f"{harness.url}/v1/chat/completions", data=body)
    assert answer.status == 400
    assert (await answer.json())["error"]["code"] == "invalid_json"
    assert reason(await harness.receiver.one()) == ("invalid_json", "error", 2)
    assert fake.requests == []


async def test_an_unknown_model_is_a_404_that_lists_the_known(harness: Harness) -> None:
    answer = await harness.chat({"model": "gpt-5"})
    assert answer.status == 404
    error = (await answer.json())["error"]
    assert (error["code"], error["type"]) == ("model_not_found", "invalid_request_error")
    assert error["message"] == "The model `gpt-5` does not exist. Known here: policy"
    span = await harness.receiver.one()
    assert reason(span) == ("model_not_found", "error", 2)
    assert span.name == "chat gpt-5"


async def test_too_large_a_request_is_a_413(harness: Harness, fake: FakeVllm) -> None:
    padding = "x" * SidecarSettings().max_body_bytes
    answer = await harness.chat({"user": padding})
    assert answer.status == 413
    assert (await answer.json())["error"]["code"] == "request_too_large"
    assert reason(await harness.receiver.one()) == ("request_too_large", "error", 2)
    assert fake.requests == []


async def test_an_upstream_that_dies_before_its_answer_is_a_502(harness: Harness, fake: FakeVllm) -> None:
    fake.die_after = 0
    answer = await harness.chat({})
    assert answer.status == 502
    assert (await answer.json())["error"]["code"] == "upstream_died"
    assert reason(await harness.receiver.one()) == ("upstream_died", "error", 2)


@pytest.mark.parametrize("events", [1, 3, 6])
async def test_an_upstream_that_dies_in_a_stream_ends_it_with_an_error_event(
    harness: Harness, fake: FakeVllm, events: int
) -> None:
    fake.die_after = events
    answer = await harness.chat({"stream": True})
    data = [json.loads(line[6:]) for line in (await answer.text()).splitlines() if line.startswith("data: ")]
    assert len(data) == events + 1
    assert data[-1]["error"]["code"] == "upstream_died"
    span = await harness.receiver.one()
    assert reason(span) == ("upstream_died", "error", 2)
    assert span.json("tracegrad.prompt.token_ids") == [11, 12, 13], "what had arrived is kept"


async def test_the_openai_sdk_raises_on_a_dying_stream(harness: Harness, fake: FakeVllm) -> None:
    fake.die_after = 3
    async with openai.AsyncOpenAI(base_url=f"{harness.url}/v1", api_key="unused", max_retries=0) as client:
        stream = await client.chat.completions.create(model="policy", messages=[], stream=True)
        with pytest.raises(openai.APIError, match="died in the middle"):
            async for _ in stream:
                pass


async def test_an_error_event_of_the_upstream_passes_through(harness: Harness, fake: FakeVllm) -> None:
    fake.stream_error = "out of blocks"
    answer = await harness.chat({"stream": True})
    text = await answer.text()
    assert '"message":"out of blocks"' in text
    assert text.endswith("data: [DONE]\n\n")
    span = await harness.receiver.one()
    assert reason(span) == ("upstream_error", "error", 2)
    assert span.message == "out of blocks"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_the_upstream(harness: Harness, fake: FakeVllm, stream: bool) -> None:
    fake.token_delay_s = 5
    body = {"model": "policy", "messages": [], "stream": stream}
    async with aiohttp.ClientSession() as client:
        if stream:
            answer = await client.post(f"{harness.url}/v1/chat/completions", json=body)
            await answer.content.readany()
            answer.close()
        else:
            with pytest.raises(TimeoutError):
                timeout = aiohttp.ClientTimeout(total=0.3)
                await client.post(f"{harness.url}/v1/chat/completions", json=body, timeout=timeout)
    span = await harness.receiver.one()
    assert reason(span) == ("client_disconnected", "client_disconnected", 2)
    assert span.seconds < 4, "the span ends when the client leaves, not when the engine would have"
    assert fake.aborted == 1


async def test_a_client_that_closes_after_done_had_its_answer(harness: Harness) -> None:
    for _ in range(10):
        reader, writer = await asyncio.open_connection(*harness.url.removeprefix("http://").split(":"))
        body = b'{"model": "policy", "messages": [], "stream": true}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await reader.readuntil(b"data: [DONE]\n\n")
        writer.transport.abort()
    for span in await harness.receiver.wait(10):
        assert span.attributes["tracegrad.trainable"] is True


async def test_answers_reach_the_agent_while_no_collector_takes_spans(
    harness: Harness, harness_for: Any, fake: FakeVllm, free_port: Any
) -> None:
    deaf = await harness_for(
        {"name": "policy", "upstream": fake.url, "policy": "policy"}, otlp=f"http://127.0.0.1:{free_port()}"
    )
    assert (await deaf.chat({})).status == 200
    page = await (await deaf.session.get(f"{deaf.admin}/metrics")).text()
    assert 'tracegrad_sidecar_spans_total{state="sent"} 0' in page
