"""What is recorded of sampling is what the engine was asked for; tokens that it put in by itself never train."""

import asyncio
import json
from typing import Any

import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness
from stand_ins import ReceivedSpan

from sidecar.sampling import SHAPING, forced, sampling
from sidecar.traits import Traits

TOOL = {"type": "function", "function": {"name": "add", "strict": True}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
@pytest.mark.parametrize("budget", [0, 4])
async def test_forced_tokens_do_not_train(harness: Harness, path: str, body: dict[str, Any], budget: int) -> None:
    asked = {"model": "policy", **body, "thinking_token_budget": budget}
    answer = await harness.session.post(harness.url + path, json=asked)
    assert answer.status == 200
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.untrainable.reason"] == "no_logprobs"
    assert span.json("tracegrad.sampling")["thinking_token_budget"] == budget


async def test_whatever_shapes_tokens_is_recorded(harness: Harness) -> None:
    asked = {"watermarking": True, "stop_token_ids": [7], "ignore_eos": True, "vllm_xargs": {"a": 1}, "min_tokens": 2}
    await harness.chat(asked)
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.trainable"] is True, "whether to train on them is the trainer's choice"
    found = span.json("tracegrad.sampling")
    assert {name: found.get(name) for name in asked} == asked


def test_no_budget_forces_nothing() -> None:
    assert not forced({"thinking_token_budget": -1}) and not forced({"thinking_token_budget": None})
    assert not set(SHAPING) & json.loads(sampling(dict.fromkeys(SHAPING))).keys()


@pytest.mark.parametrize(
    ("body", "engine", "recorded"),
    [
        ({"tools": [TOOL]}, Traits(), True),
        ({"tools": [TOOL]}, Traits(strict_tools=True), True),
        ({"tools": [TOOL]}, Traits(strict_tools=False), False),
        ({"tools": [TOOL], "tool_choice": "none"}, Traits(), False),
        ({"tools": [{"type": "function", "function": {"name": "add", "strict": False}}]}, Traits(), False),
        ({}, Traits(), False),
    ],
)
def test_strict_tools_constrain_where_the_engine_enforces_them(
    body: dict[str, Any], engine: Traits, recorded: bool
) -> None:
    assert ("strict_tools" in json.loads(sampling(body, engine))) == recorded


async def last_span(harness: Harness, mode: str) -> ReceivedSpan:
    """Of the first call since the engine's mode was learned, which nobody waits for."""
    for number in range(1, 100):
        await harness.chat({"tools": [TOOL]})
        span = (await harness.receiver.wait(number))[-1]
        if span.json("tracegrad.sampling").get("logprobs_mode") == mode:
            return span
        await asyncio.sleep(0.02)
    raise AssertionError(f"never learned: {mode}")


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
async def test_logits_are_no_log_probs(harness_for: Any, fake: FakeVllm, mode: str) -> None:
    fake.logprobs_mode, fake.strict_tools = mode, False
    harness = await harness_for({"name": "policy", "upstream": fake.url, "policy": "policy"})
    span = await last_span(harness, mode)
    reason = "no_logprobs" if mode.endswith("logits") else None
    assert span.attributes.get("tracegrad.untrainable.reason") == reason
    assert "strict_tools" not in span.json("tracegrad.sampling"), "the engine says that it does not enforce them"
