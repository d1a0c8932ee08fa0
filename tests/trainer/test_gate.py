"""The gate drops what is not exact, with the reason."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from trainer.gate import Gate, sampled_from_policy
from trainer.transitions import Call
from trainer.vocabulary import Vocabulary

GATE = Gate(
    max_prompt_tokens=4,
    max_response_tokens=3,
    max_staleness=1,
    lineage=[0, 1, 5],
    vocabulary=Vocabulary(np.arange(20) != 10),
    trained={"trained"},
)


@pytest.fixture
def call(make_call: Callable[..., Call]) -> Callable[..., Call]:
    return lambda **changes: make_call(**{"span_id": "a", "started_ns": 1, "policy_version": 5} | changes)


def test_an_exact_call_passes(call: Callable[..., Call]) -> None:
    assert GATE.drop_reason(call()) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trainable": False, "untrainable_reason": "mixed_versions"}, "mixed_versions"),
        ({"trainable": False}, "untrainable"),
        ({"response_token_ids": np.array([], np.int64), "logprobs": np.array([], np.float32)}, "no_tokens"),
        ({"prompt_token_ids": np.array([], np.int64)}, "no_tokens"),
        ({"logprobs": np.array([-0.5], np.float32)}, "no_logprobs"),
        ({"logprobs": np.array([-0.5, np.nan], np.float32)}, "no_logprobs"),
        ({"logprobs": np.array([-0.5, 7.25], np.float32)}, "no_logprobs"),
        ({"policy_version": None}, "unknown_version"),
        ({"policy_version": 4}, "unknown_version"),
        ({"policy_version": 6}, "unknown_version"),
        ({"policy_version": 0}, "stale"),
        ({"prompt_token_ids": np.arange(5)}, "too_long"),
        ({"response_token_ids": np.arange(4), "logprobs": np.zeros(4, np.float32)}, "too_long"),
        ({"sampling": '{"temperature":0.7}'}, "off_distribution"),
        ({"span_id": "trained"}, "trained_before"),
        ({"span_id": "trained", "sampling": '{"temperature":0.7}'}, "off_distribution"),
        ({"response_token_ids": np.array([7, 10])}, "undecodable"),
        ({"prompt_token_ids": np.array([-1])}, "undecodable"),
        ({"prompt_token_ids": np.array([10]), "policy_version": 0}, "undecodable"),
    ],
)
def test_a_dropped_call_has_a_reason(call: Callable[..., Call], changes: dict[str, object], reason: str) -> None:
    assert GATE.drop_reason(call(**changes)) == reason


def test_staleness_counts_versions_not_their_numbers(call: Callable[..., Call]) -> None:
    assert [GATE.staleness(version) for version in (5, 1, 0, 3, None)] == [0, 1, 2, None, None]
    assert GATE.drop_reason(call(policy_version=1)) == ""


def test_without_a_lineage_age_does_not_count(call: Callable[..., Call]) -> None:
    gate = Gate(max_prompt_tokens=4, max_response_tokens=3, max_staleness=0, lineage=None)
    assert gate.drop_reason(call(policy_version=None)) == ""


@pytest.mark.parametrize(
    ("parameters", "neutral"),
    [
        ({}, True),
        ({"temperature": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "seed": 3, "stop": ["x"]}, True),
        ({"temperature": None, "top_k": 0, "logit_bias": {}, "response_format": {"type": "text"}}, True),
        ({"stop_token_ids": [7], "repetition_detection": {"max_pattern_size": 4}, "ignore_eos": False}, True),
        ({"thinking_token_budget": -1, "watermarking": False, "vllm_xargs": {}}, True),
        ({"logprobs_mode": "raw_logprobs"}, True),
        ({"logprobs_mode": "processed_logprobs"}, True),
        ({"logprobs_mode": "raw_logits"}, False),
        ({"logprobs_mode": "processed_logits"}, False),
        ({"thinking_token_budget": 0}, False),
        ({"watermarking": True}, False),
        ({"vllm_xargs": {"target_token": 7}}, False),
        ({"ignore_eos": True}, False),
        ({"strict_tools": True}, False),
        ({"temperature": 0}, False),
        ({"top_p": 0.9}, False),
        ({"top_k": 50}, False),
        ({"min_p": 0.05}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"tool_choice": "required"}, False),
        ({"response_format": {"type": "json_object"}}, False),
    ],
)
def test_only_neutral_sampling_is_the_policys_distribution(parameters: dict[str, object], neutral: bool) -> None:
    assert sampled_from_policy(json.dumps(parameters)) is neutral


@pytest.mark.parametrize("text", ["", "nonsense", "[]"])
def test_sampling_that_was_not_recorded_proves_nothing(text: str) -> None:
    assert not sampled_from_policy(text)
