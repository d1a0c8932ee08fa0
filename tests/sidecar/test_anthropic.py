"""Anthropic's Messages API in front of a policy: what its SDK gets, and what the spans hold."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from fake_vllm import CONTENT, FakeVllm
from sidecar_harness import Harness

ADD = {
    "name": "add",
    "description": "Add numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
ASK: dict[str, Any] = {"model": "policy", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(api_key="sk-mine", base_url=f"{harness.url}/rollout/r1", max_retries=0) as sdk:
        yield sdk


async def streamed(client: anthropic.AsyncAnthropic, request: dict[str, Any]) -> anthropic.types.Message:
    async with client.messages.stream(**request) as stream:
        return await stream.get_final_message()


@pytest.mark.parametrize("extra", [{}, {"tools": [ADD]}], ids=["text", "tools"])
async def test_stream_and_whole_answer_are_the_same_message(
    client: anthropic.AsyncAnthropic, harness: Harness, extra: dict[str, Any]
) -> None:
    whole = await client.messages.create(**ASK | extra)
    pieces = await streamed(client, ASK | extra)
    assert pieces.to_dict() == whole.to_dict()
    assert whole.id == "msg_1"
    assert whole.usage.input_tokens == 3
    if extra:
        assert whole.stop_reason == "tool_use"
        (block,) = whole.content
        assert block.to_dict() == {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}}
        assert whole.usage.output_tokens == 7
    else:
        assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)
        assert [block.to_dict() for block in whole.content] == [{"type": "text", "text": "".join(CONTENT)}]
        assert whole.usage.output_tokens == len(CONTENT)
    for span in await harness.receiver.wait(2):
        assert span.name == "chat policy"
        assert span.attributes["tracegrad.trainable"] is True
        assert span.attributes["tracegrad.rollout.id"] == "r1"
        assert span.attributes["gen_ai.provider.name"] == "vllm"
        assert span.json("tracegrad.prompt.token_ids") == [11, 12, 13]
        assert len(span.json("tracegrad.response.token_ids")) == whole.usage.output_tokens
        assert len(span.json("tracegrad.response.logprobs")) == whole.usage.output_tokens
        assert span.json("gen_ai.input.messages") == [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
        part = span.json("gen_ai.output.messages")[0]["parts"][0]
        assert part["type"] == ("tool_call" if extra else "text")


async def test_the_client_sees_nothing_of_what_was_asked_for_the_record(harness: Harness) -> None:
    for stream in (False, True):
        answer = await harness.session.post(f"{harness.url}/v1/messages", json=ASK | {"stream": stream})
        seen = await answer.text()
        assert answer.status == 200
        assert "token_ids" not in seen
        assert "logprob" not in seen
        assert "chatcmpl" not in seen
        kind = "text/event-stream" if stream else "application/json"
        assert answer.content_type == kind
    events = [line.removeprefix("event: ") for line in seen.splitlines() if line.startswith("event: ")]
    deltas = ["content_block_delta"] * len(CONTENT)
    assert events == [
        *("message_start", "ping", "content_block_start", *deltas, "content_block_stop"),
        *("message_delta", "message_stop"),
    ]


async def test_the_first_event_tells_the_prompts_length(harness: Harness) -> None:
    answer = await harness.session.post(f"{harness.url}/v1/messages", json=ASK | {"stream": True})
    first = (await answer.text()).split("\n\n")[0]
    assert '"usage":{"input_tokens":3,' in first


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, ("invalid_request_error", anthropic.BadRequestError)),
        (401, ("authentication_error", anthropic.AuthenticationError)),
        (404, ("not_found_error", anthropic.NotFoundError)),
        (413, ("request_too_large", anthropic.RequestTooLargeError)),
        (429, ("rate_limit_error", anthropic.RateLimitError)),
        (500, ("api_error", anthropic.InternalServerError)),
        (529, ("overloaded_error", anthropic.OverloadedError)),
    ],
)
async def test_errors_of_the_engine_have_anthropics_shape(
    client: anthropic.AsyncAnthropic, harness: Harness, fake: FakeVllm, status: int, expected: tuple[str, Any]
) -> None:
    kind, error = expected
    fake.error = (status, "that did not work")
    with pytest.raises(error) as raised:
        await client.messages.create(**ASK)
    body = getattr(raised.value, "body", None)
    assert body == {"type": "error", "error": {"type": kind, "message": "that did not work"}}
    assert (await harness.receiver.one()).attributes["error.type"] == str(status)


async def test_errors_of_the_sidecar_have_anthropics_shape(client: anthropic.AsyncAnthropic, harness: Harness) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await client.messages.create(**ASK | {"model": "nope"})
    assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    answer = await harness.session.post(f"{harness.url}/v1/messages", data=b"{")
    assert (answer.status, (await answer.json())["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages.0.role"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ({"tool_choice": {"type": "magic"}}, "tool_choice.type"),
        ({"mcp_servers": [{"type": "url", "url": "https://made.up"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "document"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "search_result"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}
                ]
            },
            "image sources of type 'file'",
        ),
    ],
)
async def test_what_an_engine_cannot_do_is_refused(
    harness: Harness, fake: FakeVllm, change: dict[str, Any], said: str
) -> None:
    answer = await harness.session.post(f"{harness.url}/v1/messages", json=ASK | change)
    error = await answer.json()
    assert answer.status == 400
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert said in error["error"]["message"]
    assert fake.requests == []
    assert (await harness.receiver.one()).attributes["error.type"] == "invalid_request"


async def test_a_stream_that_dies_ends_in_an_error_event(
    client: anthropic.AsyncAnthropic, harness: Harness, fake: FakeVllm
) -> None:
    fake.die_after = 3
    with pytest.raises(anthropic.APIStatusError) as raised:
        await streamed(client, ASK)
    assert raised.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.untrainable.reason"] == "error"
    assert span.attributes["error.type"] == "upstream_died"


async def test_an_error_inside_the_engines_stream_is_passed_on(
    client: anthropic.AsyncAnthropic, harness: Harness, fake: FakeVllm
) -> None:
    fake.stream_error = "out of memory"
    with pytest.raises(anthropic.APIStatusError, match="out of memory"):
        await streamed(client, ASK)
    assert (await harness.receiver.one()).attributes["tracegrad.trainable"] is False


@pytest.mark.parametrize("write_size", [1, 7])
async def test_a_stream_may_be_cut_anywhere(client: anthropic.AsyncAnthropic, fake: FakeVllm, write_size: int) -> None:
    fake.write_size = write_size
    message = await streamed(client, ASK)
    assert message.content[0].to_dict() == {"type": "text", "text": "".join(CONTENT)}


async def test_lengths_and_no_answer_at_all(client: anthropic.AsyncAnthropic, fake: FakeVllm) -> None:
    fake.finish_reason = "length"
    assert (await client.messages.create(**ASK)).stop_reason == "max_tokens"
    assert (await streamed(client, ASK)).stop_reason == "max_tokens"
    fake.garbage = b"[]"
    with pytest.raises(anthropic.InternalServerError):
        await client.messages.create(**ASK)
    fake.garbage = b"{}"
    message = await client.messages.create(**ASK)
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": ""}]


async def test_the_engine_gets_a_chat_completion(
    client: anthropic.AsyncAnthropic, harness: Harness, fake: FakeVllm
) -> None:
    await client.messages.create(
        **ASK,
        system="Be kind.",
        extra_body={"temperature": 0.5, "top_k": 4},
        stop_sequences=["END"],
        tools=[ADD],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    (sent,) = fake.requests
    assert sent["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert sent["tools"] == [
        {
            "type": "function",
            "function": {"name": "add", "description": "Add numbers.", "parameters": ADD["input_schema"]},
        }
    ]
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", False)
    assert (sent["temperature"], sent["top_k"], sent["stop"], sent["max_tokens"]) == (0.5, 4, ["END"], 50)
    assert sent["chat_template_kwargs"] == {"enable_thinking": True}
    assert "thinking_token_budget" not in sent
    assert sent["return_token_ids"] is True
    span = await harness.receiver.one()
    assert span.json("tracegrad.sampling")["stop"] == ["END"]
    assert span.json("gen_ai.tool.definitions")[0]["name"] == "add"


async def test_the_engines_key_is_sent_where_an_engine_looks_for_it(harness_for: Any, fake: FakeVllm) -> None:
    model = {"name": "policy", "upstream": fake.url, "policy": "policy", "api_key": "sk-engine"}
    harness = await harness_for(model)
    answer = await harness.session.post(f"{harness.url}/v1/messages", json=ASK, headers={"x-api-key": "sk-mine"})
    assert answer.status == 200
    assert fake.headers[0]["authorization"] == "Bearer sk-engine"
    assert "sk-mine" not in str(fake.headers)
