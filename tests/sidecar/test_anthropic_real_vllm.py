"""Anthropic's SDK in front of a real vLLM."""

import re
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from sidecar_harness import Harness

pytestmark = pytest.mark.slow

CALCULATOR = {
    "name": "calculator",
    "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}},
}
HELLO = {"model": "policy", "max_tokens": 60, "messages": [{"role": "user", "content": "Say hello."}]}
PRODUCT = HELLO | {"messages": [{"role": "user", "content": "What is 3 times 14?"}], "tools": [CALCULATOR]}
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["greeting"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
CASES: dict[str, dict[str, Any]] = {
    "text": HELLO,
    "tool call": PRODUCT,
    "named tool": PRODUCT | {"tool_choice": {"type": "tool", "name": "calculator"}, "max_tokens": 30},
    "length": HELLO | {"max_tokens": 3},
    "stop": HELLO | {"stop_sequences": ["good"]},
    "prefill": HELLO | {"messages": [*HELLO["messages"], {"role": "assistant", "content": "Hello, it"}]},  # type: ignore[misc]
    "schema": HELLO | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}
REASONS = {
    "length": "max_tokens",
    "named tool": "tool_use",
    "stop": "stop_sequence",
    "tool call": "tool_use",
}


@pytest.fixture
async def harness(harness_for: Any, vllm_server: Any) -> Harness:
    started: Harness = await harness_for({"name": "policy", "upstream": vllm_server.url, "policy": "policy"})
    return started


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(api_key="sk-mine", base_url=harness.url, max_retries=0) as sdk:
        yield sdk


def canonical(message: anthropic.types.Message) -> dict[str, Any]:
    """Without the random ids."""
    told = message.to_dict()
    told["id"] = ""
    for block in told["content"]:  # type: ignore[attr-defined]
        block.pop("id", None)
    return told


@pytest.mark.parametrize("case", CASES)
async def test_whole_and_streamed_messages_are_the_same_and_exact(
    client: anthropic.AsyncAnthropic, harness: Harness, vllm_server: Any, case: str
) -> None:
    from transformers import AutoTokenizer

    request: dict[str, Any] = CASES[case] | {"extra_body": {"temperature": 0}}
    whole = await client.messages.create(**request)
    async with client.messages.stream(**request) as stream:
        pieces = await stream.get_final_message()
    assert canonical(pieces) == canonical(whole)
    # What a tiny model writes under a schema that it never learned ends sooner or later.
    assert whole.stop_reason in (("max_tokens", "end_turn") if case == "schema" else (REASONS.get(case, "end_turn"),))
    if case == "schema":
        said = "".join(block.text for block in whole.content if block.type == "text")
        assert re.fullmatch(r'\{\s*("kind".*)?', said, re.DOTALL), "JSON, however much white space the model likes"
    assert whole.stop_sequence == ("good" if case == "stop" else None)
    asked = {name: value for name, value in CASES[case].items() if name not in ("max_tokens", "stop_sequences")}
    counted = await client.messages.count_tokens(**asked)
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    tokenizer = AutoTokenizer.from_pretrained(vllm_server.model_dir)
    for span in await harness.receiver.wait(2):
        assert span.attributes["tracegrad.trainable"] is True
        assert len(span.json("tracegrad.prompt.token_ids")) == counted.input_tokens
        ids = span.json("tracegrad.response.token_ids")
        assert len(ids) == len(span.json("tracegrad.response.logprobs")) == whole.usage.output_tokens
        if case in ("text", "length", "prefill"):
            (block,) = whole.content
            assert block.to_dict()["text"] == tokenizer.decode(ids, skip_special_tokens=True)


async def test_what_vllm_refuses_is_told_in_anthropics_shape(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.messages.create(**HELLO | {"max_tokens": 5000})  # type: ignore[arg-type]
    assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
