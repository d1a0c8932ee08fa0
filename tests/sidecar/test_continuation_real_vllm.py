"""Exact continuation in front of a real vLLM: what it was prompted with, and that it answers as it always does."""

import asyncio
import json
import re
from typing import Any

import pytest
from sidecar_harness import Harness

pytestmark = pytest.mark.slow

Json = dict[str, Any]
CALCULATOR = {
    "type": "function",
    "function": {"name": "calculator", "parameters": {"type": "object", "properties": {"expression": {}}}},
}
HELLO = {"role": "user", "content": "Say hello."}
PRODUCT = {"role": "user", "content": "What is 3 times 14?"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
AGAIN = {"role": "user", "content": "Say hello."}
TALKS: dict[str, tuple[Json, Json, Json]] = {
    "text": (HELLO, AGAIN, {"temperature": 0, "max_tokens": 40, "logprobs": True}),
    "tool": (PRODUCT, RESULT, {"temperature": 0, "max_tokens": 60, "tools": [CALCULATOR]}),
    "odd tokens": (HELLO, AGAIN, {"temperature": 2.0, "seed": 7, "max_tokens": 30}),
    "stop string": (HELLO, AGAIN, {"temperature": 0, "max_tokens": 40, "stop": ["good"]}),
}


@pytest.fixture
async def harness(harness_for: Any, vllm_server: Any) -> Harness:
    started: Harness = await harness_for(
        {"name": "policy", "upstream": vllm_server.url, "policy": "policy", "continuation": "auto"}
    )
    return started


def bodies(text: str) -> list[Json]:
    """The JSON objects of an answer, whole or streamed."""
    if not text.startswith("data: "):
        return [json.loads(text)]
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def answer_of(found: list[Json]) -> tuple[list[int], list[int], Json]:
    """Prompt ids, response ids and message."""
    prompt = next(one["prompt_token_ids"] for one in found if one.get("prompt_token_ids"))
    ids: list[int] = []
    message: Json = {"role": "assistant", "content": ""}
    calls: dict[int, Json] = {}
    for choice in (choice for one in found for choice in one["choices"]):
        ids += choice.get("token_ids") or []
        if "message" in choice:
            return prompt, ids, choice["message"]
        message["content"] += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls") or []:
            call = calls.setdefault(part["index"], {"id": "call_1", "type": "function", "function": {"arguments": ""}})
            call["function"]["name"] = part["function"].get("name") or call["function"].get("name")
            call["function"]["arguments"] += part["function"].get("arguments") or ""
    return prompt, ids, message | ({"tool_calls": list(calls.values())} if calls else {})


def comparable(text: str) -> Any:
    """What must be equal: random ids and the clock taken out; of a stream, what its chunks look like and say."""
    text = re.sub(r'"(chatcmpl-(?:tool-)?|call_)[0-9a-zA-Z]+"', '"ID"', re.sub(r'"created":\d+', '"created":0', text))
    found = bodies(text)
    if not text.startswith("data: "):
        return found
    said = {"content": "", "arguments": ""}
    for choice in (choice for one in found for choice in one["choices"]):
        said["content"] += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls") or []:
            said["arguments"] += part["function"].get("arguments") or ""
    looks = {(tuple(one), *((tuple(each), tuple(each["delta"])) for each in one["choices"])) for one in found}
    return said, looks, answer_of(found)[:2], found[-1].get("usage"), text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("talk", TALKS)
async def test_the_engine_is_prompted_with_what_it_sampled(
    harness: Harness, vllm_server: Any, talk: str, stream: bool
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(vllm_server.model_dir)
    question, after, settings = TALKS[talk]
    body = {"model": "policy", "stream": stream, "return_token_ids": True, **settings}
    at = f"/rollout/{talk.replace(' ', '-')}-{stream}/v1"
    first = await harness.chat(body | {"messages": [question]}, at=at)
    prompt, ids, message = answer_of(bodies(await first.text()))
    messages = [question, message, after]
    second = await harness.chat(body | {"messages": messages}, at=at)
    told = await second.text()
    continued, sampled, _ = answer_of(bodies(told))

    known = prompt + ids
    assert continued[: len(known)] == known
    ended = ids[-1] == tokenizer.eos_token_id
    close = "" if ended else "<|im_end|>"
    bridge = f"{close}\n<|im_start|>{after['role']}\n{after['content']}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(continued[len(known) :]) == bridge
    assert ended == (talk in {"text", "tool"})

    url = vllm_server.url
    plain = {"messages": messages, "tools": settings.get("tools")}
    rendered = await (await harness.session.post(f"{url}/tokenize", json=plain)).json()
    if talk == "odd tokens":
        assert rendered["tokens"] != continued, "the tokeniser would have chosen other ids"
    if talk in {"text", "tool"}:
        assert rendered["tokens"] == continued, "here the tokeniser happens to choose what was sampled"
        direct = await harness.session.post(f"{url}/v1/chat/completions", json=body | {"messages": messages})
        assert comparable(told) == comparable(await direct.text())
    spans = {span.span_id: span for span in await harness.receiver.wait(2)}
    span = spans[second.headers["x-tracegrad-span-id"]]
    assert span.attributes["tracegrad.continuation"] == "tokens"
    assert span.attributes["tracegrad.trainable"] is True
    assert span.json("tracegrad.response.token_ids") == sampled
    assert len(span.json("tracegrad.response.logprobs")) == len(sampled)
    assert span.attributes["gen_ai.usage.input_tokens"] == len(continued)


async def test_the_template_is_known_to_be_append_only(harness: Harness) -> None:
    async with asyncio.timeout(60):
        while True:
            policies = (await (await harness.session.get(f"{harness.admin}/policies")).json())["policies"]
            if policies[0]["continuation"]["state"] != "unknown":
                break
            await asyncio.sleep(0.1)
    assert policies[0]["continuation"]["state"] == "tokens"
