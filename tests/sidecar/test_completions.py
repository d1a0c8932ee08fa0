"""Text completions of a policy: what the client sees, and what the spans hold."""

from typing import Any

import openai
import pytest
from aiohttp import web
from fake_completions import PARTS
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening
from stand_ins import ReceivedSpan

TEXT = "".join(PARTS)
IDS = list(range(len(PARTS)))
ASK: dict[str, Any] = {"model": "policy", "prompt": "Hi"}
STREAMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "stream": {"stream": True},
    "usage": {"stream": True, "stream_options": {"include_usage": True}},
}


async def both(harness: Harness, fake: FakeVllm, body: dict[str, Any]) -> tuple[bytes, bytes]:
    """What a client gets through the sidecar and without it."""
    through = await harness.session.post(f"{harness.url}/v1/completions", json=body)
    direct = await harness.session.post(f"{fake.url}/v1/completions", json=body)
    assert (through.status, through.headers["content-type"]) == (direct.status, direct.headers["content-type"])
    return await through.read(), await direct.read()


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"return_token_ids": True},
        {"logprobs": 0},
        {"logprobs": 2, "return_token_ids": True},
        {"echo": True},
        {"echo": True, "logprobs": 1},
        {"echo": True, "return_token_ids": True},
        {"prompt": [72, 105]},
        {"prompt": ["one"]},
    ],
    ids=str,
)
async def test_the_client_sees_what_it_would_have_seen_alone(
    harness: Harness, fake: FakeVllm, extra: dict[str, Any]
) -> None:
    for stream in STREAMS.values():
        through, direct = await both(harness, fake, ASK | stream | extra)
        assert through == direct


@pytest.mark.parametrize("stream", STREAMS)
async def test_of_several_choices_each_stream_keeps_its_order(harness: Harness, fake: FakeVllm, stream: str) -> None:
    body = ASK | STREAMS[stream] | {"prompt": ["Hi", "you"], "n": 2}
    through, direct = await both(harness, fake, body)
    # The chunk that ends one choice comes after those of the others: its fingerprint is known only then.
    assert sorted(through.split(b"\n\n")) == sorted(direct.split(b"\n\n"))


@pytest.mark.parametrize("write_size", [1, 7, 4096])
async def test_streams_cut_anywhere_are_read_and_passed_on(harness: Harness, fake: FakeVllm, write_size: int) -> None:
    fake.write_size = write_size
    through, direct = await both(harness, fake, ASK | {"stream": True})
    assert through == direct
    assert (await harness.receiver.one()).json("tracegrad.response.token_ids") == IDS


@pytest.mark.parametrize("stream", STREAMS)
async def test_the_span_holds_what_was_sampled(harness: Harness, stream: str) -> None:
    at = f"{harness.url}/rollout/r1/v1/completions"
    answer = await harness.session.post(at, json=ASK | STREAMS[stream] | {"temperature": 0.5, "stop": "END"})
    await answer.read()
    span = await harness.receiver.one()
    assert span.name == "text_completion policy"
    assert span.attributes["gen_ai.operation.name"] == "text_completion"
    assert span.attributes["tracegrad.rollout.id"] == "r1"
    assert span.attributes["tracegrad.trainable"] is True
    assert span.attributes["gen_ai.response.id"] == "cmpl-1"
    assert span.attributes["gen_ai.usage.input_tokens"] == 2
    assert span.attributes["gen_ai.usage.output_tokens"] == len(PARTS)
    assert span.json("tracegrad.prompt.token_ids") == [72, 105]
    assert span.json("tracegrad.response.token_ids") == IDS
    assert span.json("tracegrad.response.logprobs") == [-1e-05 - one / 7 for one in IDS]
    assert span.json("tracegrad.sampling")["temperature"] == 0.5
    assert span.json("gen_ai.input.messages") == [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
    said = {"role": "assistant", "parts": [{"type": "text", "content": TEXT}], "finish_reason": "stop"}
    assert span.json("gen_ai.output.messages") == [said]


@pytest.mark.parametrize("stream", STREAMS)
async def test_every_choice_of_every_prompt_has_its_own_tokens(harness: Harness, stream: str) -> None:
    body = ASK | STREAMS[stream] | {"prompt": ["Hi", "you"], "n": 2}
    await (await harness.session.post(f"{harness.url}/v1/completions", json=body)).read()
    spans = await harness.receiver.wait(5)
    call = next(span for span in spans if span.name != "choice")
    assert call.attributes["gen_ai.usage.input_tokens"] == 5
    assert "tracegrad.prompt.token_ids" not in call.attributes
    assert len(call.json("gen_ai.input.messages")) == 2
    choices = sorted((span for span in spans if span is not call), key=_index)
    for index, span in enumerate(choices):
        prompt = ["Hi", "you"][index // 2]
        assert span.attributes["tracegrad.trainable"] is True
        assert _index(span) == index
        assert span.json("tracegrad.prompt.token_ids") == [ord(one) for one in prompt]
        assert span.json("tracegrad.response.token_ids") == [1000 * index + one for one in IDS]
        assert span.attributes["gen_ai.usage.input_tokens"] == len(prompt)
        assert span.json("gen_ai.input.messages")[0]["parts"][0]["content"] == prompt


def _index(span: ReceivedSpan) -> int:
    index: int = span.attributes["tracegrad.choice.index"]
    return index


async def test_several_choices_of_one_prompt_share_it(harness: Harness) -> None:
    await (await harness.session.post(f"{harness.url}/v1/completions", json=ASK | {"n": 3})).read()
    for span in await harness.receiver.wait(4):
        if span.name == "choice":
            assert span.attributes["tracegrad.trainable"] is True
            assert span.json("tracegrad.prompt.token_ids") == [72, 105]


async def test_a_prompt_of_ids_is_no_message(harness: Harness) -> None:
    await (await harness.session.post(f"{harness.url}/v1/completions", json=ASK | {"prompt": [5, 6, 7]})).read()
    span = await harness.receiver.one()
    assert span.json("gen_ai.input.messages") == []
    assert span.json("tracegrad.prompt.token_ids") == [5, 6, 7]
    assert span.attributes["tracegrad.trainable"] is True


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"echo": True}, "no_token_ids"),
        ({"echo": True, "logprobs": 0}, "no_token_ids"),
        ({"echo": True, "return_token_ids": True}, "no_logprobs"),
        ({"echo": True, "return_token_ids": True, "logprobs": 0}, None),
        ({"use_beam_search": True}, "no_token_ids"),
        ({"use_beam_search": True, "return_token_ids": True, "logprobs": 0}, "no_token_ids"),
        ({"prompt_embeds": ["AAAA"]}, "no_token_ids"),
    ],
    ids=str,
)
async def test_what_is_no_sample_is_not_trained_on(harness: Harness, extra: dict[str, Any], reason: str | None) -> None:
    for stream in STREAMS.values():
        await (await harness.session.post(f"{harness.url}/v1/completions", json=ASK | stream | extra)).read()
    for span in await harness.receiver.wait(len(STREAMS)):
        assert span.attributes.get("tracegrad.untrainable.reason") == reason
        if reason is None:
            assert span.json("tracegrad.response.logprobs") == [-1e-05 - one / 7 for one in IDS]


async def test_what_vllm_would_refuse_is_not_made_acceptable(harness: Harness, fake: FakeVllm) -> None:
    fake.error = (400, "when using `logprob_token_ids`, `logprobs` must be set.")
    through, direct = await both(harness, fake, ASK | {"logprob_token_ids": [1]})
    assert through == direct
    assert "logprobs" not in fake.requests[0]


async def test_streams_that_die_or_fail_are_told_and_not_trained_on(harness: Harness, fake: FakeVllm) -> None:
    fake.die_after = 2
    answer = await harness.session.post(f"{harness.url}/v1/completions", json=ASK | {"stream": True})
    *_, last, end = (await answer.text()).split("\n\n")
    assert end == ""
    assert '"code":"upstream_died"' in last
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.untrainable.reason"] == "error"
    assert span.json("gen_ai.output.messages")[0]["parts"][0]["content"] == "".join(PARTS[:2])


async def test_a_cut_off_answer_is_aborted(harness: Harness, fake: FakeVllm) -> None:
    fake.finish_reason = "abort"
    await (await harness.session.post(f"{harness.url}/v1/completions", json=ASK)).read()
    assert (await harness.receiver.one()).attributes["tracegrad.untrainable.reason"] == "aborted"


async def test_the_openai_sdk_works_unchanged(harness: Harness) -> None:
    async with openai.AsyncOpenAI(base_url=f"{harness.url}/v1", api_key="sk-mine") as client:
        whole = await client.completions.create(model="policy", prompt="Hi")
        assert whole.choices[0].text == TEXT
        stream = await client.completions.create(model="policy", prompt="Hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT


@pytest.mark.parametrize("stream", [False, True])
async def test_a_providers_completions_pass_and_are_recorded(harness_for: Any, fake: FakeVllm, stream: bool) -> None:
    harness = await harness_for({"name": "*", "upstream": fake.url})
    through, direct = await both(harness, fake, ASK | {"stream": stream, "n": 2})
    assert through == direct
    assert "return_token_ids" not in fake.requests[0]
    choices = [span for span in await harness.receiver.wait(3) if span.name == "choice"]
    for span in choices:
        assert span.json("gen_ai.input.messages")[0]["parts"][0]["content"] == "Hi"
        assert span.json("gen_ai.output.messages")[0]["parts"][0]["content"] == TEXT
        assert span.attributes["tracegrad.untrainable.reason"] == "passthrough"


async def test_an_odd_answer_is_passed_on(harness_for: Any) -> None:
    async def odd(_: web.Request) -> web.Response:
        return web.Response(
            body=b'{"choices": [{"index": "x", "logprobs": 7, "text": null}], "usage": []}',
            content_type="application/json",
        )

    app = web.Application()
    app.router.add_post("/v1/completions", odd)
    async with listening(app) as upstream:
        harness = await harness_for({"name": "policy", "upstream": upstream, "policy": "policy"})
        answer = await harness.session.post(f"{harness.url}/v1/completions", json=ASK)
        assert answer.status == 200
        assert (await answer.json())["choices"][0]["index"] == "x"
    assert (await harness.receiver.one()).attributes["tracegrad.trainable"] is False
