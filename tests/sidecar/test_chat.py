"""A policy's chat completion: the client sees what it would have seen alone, the span holds every sampled token."""

import json
from typing import Any

import openai
import pytest
from fake_vllm import PROMPT_IDS, FakeVllm
from sidecar_harness import Harness
from stand_ins import ReceivedSpan

ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
TOOLS = {"tools": [ADD]}

ASKS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "token ids": {"return_token_ids": True},
    "no token ids": {"return_token_ids": False, "logprobs": False},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "both": {"logprobs": True, "return_token_ids": True},
    "tools": TOOLS,
    "tools and ids": TOOLS | {"return_token_ids": True},
    "tools and logprobs": TOOLS | {"logprobs": True},
}
STREAMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "stream": {"stream": True},
    "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
    "stream with usage per chunk": {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
    "usage per chunk alone, which vLLM ignores": {"stream": True, "stream_options": {"continuous_usage_stats": True}},
}


def assert_exact(span: ReceivedSpan, tokens: int) -> None:
    ids = [100 + place for place in range(tokens)]
    assert span.json("tracegrad.prompt.token_ids") == PROMPT_IDS
    assert span.json("tracegrad.response.token_ids") == ids
    assert span.json("tracegrad.response.logprobs") == [-one / 7 for one in ids]
    assert span.attributes["tracegrad.trainable"] is True
    assert "tracegrad.untrainable.reason" not in span.attributes


@pytest.mark.parametrize("asked", ASKS)
async def test_the_client_sees_what_it_would_have_seen_alone(harness: Harness, fake: FakeVllm, asked: str) -> None:
    for how, stream in STREAMS.items():
        body = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]} | ASKS[asked] | stream
        through = await harness.chat(body)
        direct = await harness.session.post(f"{fake.url}/v1/chat/completions", json=body)
        assert through.status == direct.status == 200
        assert through.headers["content-type"] == direct.headers["content-type"]
        sent, expected = await through.text(), await direct.text()
        if not stream:  # values and the order of keys, not the spaces between them
            sent, expected = json.dumps(json.loads(sent)), json.dumps(json.loads(expected))
        assert sent == expected, how
    for span in await harness.receiver.wait(len(STREAMS)):
        assert_exact(span, 7 if "tools" in ASKS[asked] else 5)


@pytest.mark.parametrize("size", [1, 2, 7, 4096])
async def test_streams_cut_anywhere_are_read_and_passed_on(harness: Harness, fake: FakeVllm, size: int) -> None:
    fake.write_size = size
    answer = await harness.chat({"stream": True})
    direct = await harness.session.post(f"{fake.url}/v1/chat/completions", json={"model": "policy", "stream": True})
    assert await answer.text() == (await direct.text())
    assert_exact(await harness.receiver.one(), 5)


async def test_a_stream_is_passed_on_chunk_by_chunk(harness: Harness, fake: FakeVllm) -> None:
    fake.token_delay_s = 0.1
    answer = await harness.chat({"stream": True})
    first = await answer.content.readany()
    assert b'"role":"assistant"' in first
    assert b"[DONE]" not in first
    assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def test_the_request_keeps_the_clients_bytes(harness: Harness, fake: FakeVllm) -> None:
    text = '{ "model" : "policy", "messages": [{"role":"user","content":"caf\\u00e9"}], "seed": 7 } '
    await harness.session.post(f"{harness.url}/v1/chat/completions", data=text)
    added = {"return_token_ids": True, "logprobs": True}
    assert fake.requests == [json.loads(text) | added]
    assert list(fake.requests[0]) == ["model", "messages", "seed", *added]


@pytest.mark.parametrize(
    "refused", [{"top_logprobs": 3}, {"logprob_token_ids": [1], "logprobs": False}, {"use_beam_search": True}]
)
async def test_what_vllm_would_refuse_is_not_made_acceptable(
    harness: Harness, fake: FakeVllm, refused: dict[str, Any]
) -> None:
    await harness.chat(refused)
    assert not fake.requests[0].get("logprobs")
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.untrainable.reason"] == "no_logprobs"


async def test_the_span_tells_all_of_a_call(harness: Harness, fake: FakeVllm) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    tool_call = {"id": "c0", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    messages = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": [{"type": "text", "text": "1?"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "c0", "content": "3"},
    ]
    sampling = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "stop": ["\n"], "max_completion_tokens": 9}
    answer = await harness.chat(
        {"messages": messages, **TOOLS, **sampling, "presence_penalty": 0.5, "tool_choice": "required"},
        at="/rollout/r-1/attempt/2/v1",
        traceparent=f"00-{trace}-{parent}-01",
        baggage="task.id=t%201",
        x_stainless_retry_count="1",
    )
    span = await harness.receiver.one()
    assert (span.name, span.kind, span.status) == ("chat policy", 2, 0)
    assert (span.trace_id, span.parent_id) == (trace, parent)
    assert answer.headers["x-rollout-id"] == "r-1"
    assert answer.headers["x-tracegrad-policy"] == "policy@0"
    assert answer.headers["x-tracegrad-span-id"] == span.span_id
    assert fake.headers[0]["traceparent"] == f"00-{trace}-{span.span_id}-01", "the engine's spans hang below ours"
    expected = {
        "tracegrad.rollout.id": "r-1",
        "tracegrad.rollout.attempt": 2,
        "tracegrad.task.id": "t 1",
        "tracegrad.retry.count": 1,
        "tracegrad.policy.name": "policy",
        "tracegrad.policy.version": 0,
        "tracegrad.choice.index": 0,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "policy",
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stop_sequences": ["\n"],
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "policy",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 7,
        "http.response.status_code": 200,
    }
    assert {name: span.attributes[name] for name in expected} == expected
    assert span.json("tracegrad.sampling") == {
        **{"temperature": 0.7, "top_p": 0.9, "top_k": None, "min_p": None, "seed": 3, "stop": ["\n"], "n": None},
        **{"max_tokens": 9, "presence_penalty": 0.5, "tool_choice": "required"},
    }
    assert span.json("gen_ai.input.messages") == [
        {"role": "system", "parts": [{"type": "text", "content": "Add."}]},
        {
            "role": "user",
            "parts": [{"type": "text", "content": "1?"}, {"type": "uri", "modality": "image", "uri": "u"}],
        },
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c0", "name": "add", "arguments": {"a": 2}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c0", "response": "3"}]},
    ]
    assert span.json("gen_ai.tool.definitions") == [{"type": "function", **ADD["function"]}]  # type: ignore[dict-item]
    tool_call_part = {"type": "tool_call", "id": "call_1", "name": "add", "arguments": {"a": 1}}
    assert span.json("gen_ai.output.messages") == [
        {"role": "assistant", "parts": [tool_call_part], "finish_reason": "tool_calls"}
    ]


async def test_a_streamed_answer_is_recorded_like_a_whole_one(harness: Harness) -> None:
    for body in ({}, {"stream": True}, TOOLS, TOOLS | {"stream": True}):
        await (await harness.chat(body)).read()
    spans = await harness.receiver.wait(4)
    same = [
        "gen_ai.output.messages",
        "gen_ai.response.id",
        "gen_ai.usage.output_tokens",
        "tracegrad.response.token_ids",
        "tracegrad.response.logprobs",
        "tracegrad.prompt.token_ids",
    ]
    for whole, streamed in ((spans[0], spans[1]), (spans[2], spans[3])):
        assert {name: whole.attributes[name] for name in same} == {name: streamed.attributes[name] for name in same}


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices_are_one_span_each_below_the_call(harness: Harness, stream: bool) -> None:
    body = await (await harness.chat({"n": 3, "stream": stream})).text()
    assert '"token_ids":[' not in body.replace(" ", "")
    spans = await harness.receiver.wait(4)
    request = next(span for span in spans if span.name == "chat policy")
    choices = [span for span in spans if span.name == "choice"]
    assert "tracegrad.trainable" not in request.attributes
    assert [one.attributes["tracegrad.choice.index"] for one in choices] == [0, 1, 2]
    for choice in choices:
        assert (choice.trace_id, choice.parent_id) == (request.trace_id, request.span_id)
        assert choice.attributes["tracegrad.rollout.id"] == request.attributes["tracegrad.rollout.id"]
        assert choice.attributes["tracegrad.policy.version"] == 0
        assert choice.json("gen_ai.input.messages") == request.json("gen_ai.input.messages")
        assert_exact(choice, 5)


async def test_the_openai_sdk_works_unchanged(harness: Harness) -> None:
    client = openai.AsyncOpenAI(base_url=f"{harness.url}/rollout/r/v1", api_key="unused", max_retries=0)
    whole = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hi"}])
    assert whole.choices[0].message.content == "Hello caf\u00e9 \u2713!"
    assert whole.choices[0].logprobs is None
    stream = await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(parts) == whole.choices[0].message.content
    assert [model.id async for model in client.models.list()] == ["policy"]
    with pytest.raises(openai.NotFoundError, match="Known here: policy"):
        await client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Hi"}])
    await client.close()
    spans = await harness.receiver.wait(3)
    assert sorted(span.attributes["tracegrad.trainable"] for span in spans) == [False, True, True]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"drop_token": True}, "incomplete_token_ids"),
        ({"drop_logprobs": True}, "no_logprobs"),
        ({"finish_reason": "abort"}, "aborted"),
        ({"finish_reason": "error"}, "error"),
    ],
)
async def test_what_is_not_exact_is_marked_with_the_reason(
    harness: Harness, fake: FakeVllm, fault: dict[str, Any], reason: str
) -> None:
    for name, value in fault.items():
        setattr(fake, name, value)
    await (await harness.chat({"stream": True})).read()
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.trainable"] is False
    assert span.attributes["tracegrad.untrainable.reason"] == reason
