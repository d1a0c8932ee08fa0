"""Responses of a real vLLM: the same tokens and texts as its chat completions, whole, streamed and continued."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from sidecar_harness import Harness
from stand_ins import ReceivedSpan

pytestmark = pytest.mark.slow

CALCULATOR: dict[str, Any] = {
    "type": "function",
    "name": "calculator",
    "parameters": {"type": "object", "properties": {"expression": {}}},
}
CASES: dict[str, dict[str, Any]] = {
    "text": {"input": "Say hello."},
    "instructions": {"input": [{"role": "user", "content": "Say hello."}], "instructions": "Be brief."},
    "tool call": {"input": "What is 3 times 14?", "tools": [CALCULATOR]},
    "length": {"input": "Say hello.", "max_output_tokens": 3},
    "log-probs": {"input": "Say hello.", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
}


@pytest.fixture
async def harness(harness_for: Any, vllm_server: Any) -> Harness:
    started: Harness = await harness_for({"name": "policy", "upstream": vllm_server.url, "policy": "policy"})
    return started


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{harness.url}/v1", api_key="unused", max_retries=0) as sdk:
        yield sdk


def exact(span: ReceivedSpan, response: Any) -> list[int]:
    """The response's token ids, which can be trained on."""
    assert span.attributes["tracegrad.trainable"] is True, span.attributes
    ids: list[int] = span.json("tracegrad.response.token_ids")
    assert len(ids) == len(span.json("tracegrad.response.logprobs")) == response.usage.output_tokens
    assert len(span.json("tracegrad.prompt.token_ids")) == response.usage.input_tokens
    return ids


def shown(response: Any) -> Any:
    """A response's output and usage without ids."""
    output = [{name: value for name, value in item.to_dict().items() if "id" not in name} for item in response.output]
    return output, response.usage.to_dict(), response.status


@pytest.mark.parametrize("case", CASES)
async def test_whole_and_streamed_responses_are_the_chats(
    client: openai.AsyncOpenAI, harness: Harness, vllm_server: Any, case: str
) -> None:
    ask: dict[str, Any] = {"model": "policy", "temperature": 0, "max_output_tokens": 60} | CASES[case]
    whole = await client.responses.create(**ask)
    events = [event async for event in await client.responses.create(**ask, stream=True)]
    last = events[-1]
    assert last.type == ("response.incomplete" if case == "length" else "response.completed")
    assert shown(last.response) == shown(whole)
    spans = await harness.receiver.wait(2)
    assert exact(spans[0], whole) == exact(spans[1], last.response)
    direct = await (await harness.session.post(f"{vllm_server.url}/v1/chat/completions", json=spans_chat(ask))).json()
    choice = direct["choices"][0]
    assert spans[0].json("tracegrad.response.token_ids") == choice["token_ids"]
    assert whole.output_text == (choice["message"]["content"] or "")
    calls = [item for item in whole.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == [
        call["function"]["arguments"] for call in choice["message"].get("tool_calls", [])
    ]
    assert bool(calls) == (case == "tool call")
    if case == "log-probs":
        entries = whole.output[0].content[0].logprobs
        assert "".join(entry.token for entry in entries) == whole.output_text
        assert [entry.logprob for entry in entries] == spans[0].json("tracegrad.response.logprobs")[: len(entries)]


def spans_chat(ask: dict[str, Any]) -> dict[str, Any]:
    """The chat completion that a request stands for, written by hand."""
    given = ask["input"] if isinstance(ask["input"], str) else ask["input"][0]["content"]
    system = [{"role": "system", "content": ask["instructions"]}] if "instructions" in ask else []
    function = {name: value for name, value in CALCULATOR.items() if name != "type"}
    tools = {"tools": [{"type": "function", "function": function}]} if "tools" in ask else {}
    return {
        **{"model": "policy", "temperature": 0, "max_tokens": ask["max_output_tokens"], "return_token_ids": True},
        **{"messages": [*system, {"role": "user", "content": given}]},
        **tools,
    }


async def test_a_conversation_continues_after_a_tool_call(
    client: openai.AsyncOpenAI, harness: Harness, vllm_server: Any
) -> None:
    from transformers import AutoTokenizer

    ask: dict[str, Any] = {"model": "policy", "temperature": 0, "max_output_tokens": 60, "tools": [CALCULATOR]}
    first = await client.responses.create(**ask, input="What is 3 times 14?")
    (call,) = (item for item in first.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    second = await client.responses.create(**ask, input=[result], previous_response_id=first.id)
    spans = await harness.receiver.wait(2)
    exact(spans[1], second)
    tokenizer = AutoTokenizer.from_pretrained(vllm_server.model_dir)
    prompt = tokenizer.decode(spans[1].json("tracegrad.prompt.token_ids"))
    assert "What is 3 times 14?" in prompt
    assert "<tool_call>" in prompt
    assert "42" in prompt
    assert [one["role"] for one in spans[1].json("gen_ai.input.messages")] == ["user", "assistant", "tool"]


async def test_a_structured_answer_is_json(client: openai.AsyncOpenAI, harness: Harness) -> None:
    schema = {"type": "string", "enum": ["yes", "no"]}  # an object's white space may go on for ever
    response = await client.responses.create(
        model="policy",
        input="Say hello.",
        temperature=0,
        max_output_tokens=60,
        text={"format": {"type": "json_schema", "name": "verdict", "schema": schema, "strict": True}},
    )
    assert json.loads(response.output_text) in {"yes", "no"}
    exact(await harness.receiver.one(), response)


async def test_what_vllm_refuses_is_refused(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.responses.create(model="policy", input="Hi", temperature=-3)
