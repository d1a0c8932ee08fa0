"""What a failure policy leaves of a rollout, and who is measured against whom."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tree_spans import span

from trainer.batch_choices import Choices
from trainer.choices import ErrorType, OnFailure
from trainer.failures import FailurePolicy, errors_of_rollout
from trainer.gate import Gate
from trainer.merging import rows_of
from trainer.reward_sets import Given
from trainer.rollout import Rollout
from trainer.samples import samples_of
from trainer.spans import Span
from trainer.transitions import Call

GATE = Gate(max_prompt_tokens=100, max_response_tokens=100, max_staleness=1, lineage=None)
MakeCall = Callable[..., Call]


def rollout(
    name: str, calls: Sequence[Call], rewards: Mapping[str, float], spans: Sequence[Span] = (), **changes: Any
) -> Rollout:
    made = Rollout(
        rollout_id=name,
        attempt=0,
        task_id="t",
        trace_id="ab" * 16,
        root_span_id=f"{name}.root",
        status="succeeded",
        error_type="",
        split="train",
        reward=sum(rewards.values()),
        calls=[replace(call, rollout_id=name) for call in calls],
        spans=spans,
        given=[Given(span_id, "answer", reward) for span_id, reward in rewards.items()],
        rewards=rewards,
    )
    return replace(made, **changes)


def choices(on_failure: Mapping[ErrorType, OnFailure] | None = None, **changes: Any) -> Choices:
    return replace(Choices(failures=FailurePolicy(dict(on_failure or {})), penalty=-1.0), **changes)


def credits(rollouts: Sequence[Rollout], chosen: Choices) -> dict[str, tuple[float, str]]:
    found = samples_of(rollouts, "policy", chosen, GATE)
    return {sample.transition.call.span_id: (sample.credit, sample.drop_reason) for sample in found.all}


def test_a_dropped_calls_rewards_are_dropped_with_it(make_call: MakeCall) -> None:
    calls = [
        make_call("a.1", 10, finish_reason="length", tool_call_ids=("x",)),
        make_call("a.2", 20),
    ]
    tool = span("tool", "a.root", 12, is_tool=True, tool_call_id="x")
    rewards = {"a.root": 1.0, "a.1": -5.0, "tool": -7.0}
    others = rollout("b", [make_call("b.1", 10)], {"b.root": 0.0})
    for scheme in ("identical", "discounted", "hierarchical"):
        found = credits([rollout("a", calls, rewards, [tool]), others], choices({"truncation": "drop"}, scheme=scheme))
        assert found["a.1"] == (0.0, "failed_truncation")
        assert found["a.2"] == (1.0, "")


def test_nothing_is_left_to_learn_where_the_only_reward_was_a_dropped_calls(make_call: MakeCall) -> None:
    calls = [make_call("a.1", 10, finish_reason="length"), make_call("a.2", 20)]
    found = credits([rollout("a", calls, {"a.1": 1.0})], choices({"truncation": "drop"}))
    assert found == {"a.1": (0.0, "failed_truncation"), "a.2": (0.0, "no_reward")}


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [("identical", [-0.5, -0.5]), ("hierarchical", [-0.5, -0.5]), ("discounted", [-0.5, -0.5]), ("step", [0.5, -1.0])],
)
def test_the_penalty_reaches_calls_by_every_scheme(make_call: MakeCall, scheme: str, expected: list[float]) -> None:
    calls = [make_call("a.1", 10), make_call("a.2", 20)]
    rewards = {"a.1": 0.5} if scheme == "step" else {"a.root": 0.5}
    late = rollout("a", calls, rewards, status="timeout")
    found = credits([late, rollout("b", [make_call("b.1", 10)], {"b.1": 0.5})], choices(scheme=scheme))
    assert [found["a.1"], found["a.2"]] == [(credit, "") for credit in expected]


def test_rollouts_of_one_trace_are_not_blamed_for_each_others_tools(make_call: MakeCall) -> None:
    trace = make_call("x", 0).trace_id
    calls = {
        name: [make_call(f"{name}.1", start), make_call(f"{name}.2", start + 1)]
        for name, start in (("a", 10), ("b", 20))
    }
    spans = [
        *(
            span(call.span_id, "harness", call.started_ns, trace_id=trace, is_call=True)
            for of in calls.values()
            for call in of
        ),
        span("tool", "harness", 25, trace_id=trace, is_tool=True, status_code="Error"),
        span("harness", "", 1, trace_id=trace),
    ]
    rollouts = [
        rollout(name, of, {f"{name}.1": float(name == "a")}, spans, root_span_id="") for name, of in calls.items()
    ]
    found = samples_of(rollouts, "policy", choices({"tool_error": "mask"}), GATE)
    assert found.failures == {}, "whose tool it was is not known"
    told = replace(calls["b"][0], tool_call_ids=("x",))
    asked = [*spans[:4], replace(spans[4], tool_call_id="x"), *spans[5:]]
    rollouts = [replace(rollouts[0], spans=asked), replace(rollouts[1], spans=asked, calls=[told, calls["b"][1]])]
    found = samples_of(rollouts, "policy", choices({"tool_error": "mask"}), GATE)
    assert [item.transition.call.span_id for item in found.all if item.drop_reason == "failed_tool_error"] == ["b.1"]


def test_an_agent_of_its_own_keeps_a_shared_traces_tools_apart(make_call: MakeCall) -> None:
    trace = make_call("x", 0).trace_id
    spans = [
        span("agent a", "harness", 1, trace_id=trace, agent="writer"),
        span("a.1", "agent a", 10, trace_id=trace, is_call=True),
        span("tool", "agent a", 12, trace_id=trace, is_tool=True, status_code="Error"),
        span("b.1", "harness", 11, trace_id=trace, is_call=True),
    ]
    of_a = rollout("a", [make_call("a.1", 10)], {"a.1": 1.0}, spans, root_span_id="")
    of_b = rollout("b", [make_call("b.1", 11)], {"b.1": 0.0}, spans, root_span_id="")
    found = credits([of_a, of_b], choices({"tool_error": "mask"}))
    assert {name: reason for name, (_, reason) in found.items()} == {"a.1": "failed_tool_error", "b.1": ""}


def test_a_harness_that_fails_around_several_rollouts_is_nobodys_failure(make_call: MakeCall) -> None:
    trace = make_call("x", 0).trace_id
    harness = span("harness", "", 1, trace_id=trace, status_code="Error")
    own, other = (span(name, "harness", 10, trace_id=trace, is_call=True) for name in ("a.1", "b.1"))
    calls = [make_call("a.1", 10)]
    assert errors_of_rollout("running", "", calls, [harness, own]) == "exception"
    assert errors_of_rollout("running", "", calls, [harness, own, other]) is None


def test_calls_of_an_agent_can_be_measured_against_those_of_the_same_agent(make_call: MakeCall) -> None:
    """Two rollouts in which the writer is better than its critic: measured together, all of the critic's lose."""
    rollouts = [
        rollout(
            name,
            [make_call(f"{name}.1", 10, agent="writer"), make_call(f"{name}.2", 20, agent="critic")],
            {f"{name}.1": writer, f"{name}.2": critic},
        )
        for name, writer, critic in (("a", 1.0, 0.2), ("b", 0.8, 0.0))
    ]
    chosen = choices(scheme="step", estimator="dr_grpo")
    together = samples_of(rollouts, "policy", chosen, GATE)
    apart = samples_of(rollouts, "policy", replace(chosen, group_by="task-agent"), GATE)
    assert [sample.advantage for sample in together.all] == pytest.approx([0.5, -0.3, 0.3, -0.5])
    assert [sample.advantage for sample in apart.all] == pytest.approx([0.1, 0.1, -0.1, -0.1])
    assert apart.n_grouped == 2
    rows, _ = rows_of(apart, merge=False, max_row_tokens=100)
    assert sum(float(row.weights.sum()) for row in rows) == pytest.approx(1.0), "a rollout counts once"


def test_who_died_before_a_call_counts_for_every_agent(make_call: MakeCall) -> None:
    calls = [make_call("a.1", 10, agent="writer"), make_call("a.2", 20, agent="critic")]
    rollouts = [rollout("a", calls, {"a.root": 1.0}), rollout("b", [], {"b.root": 0.0})]
    found = samples_of(rollouts, "policy", choices(estimator="dr_grpo", group_by="task-agent"), GATE)
    assert [(sample.advantage, sample.drop_reason) for sample in found.all] == [(0.5, ""), (0.5, "")]


def test_an_agent_that_only_one_rollout_had_is_alone(make_call: MakeCall) -> None:
    first = rollout("a", [make_call("a.1", 10, agent="writer"), make_call("a.2", 20, agent="critic")], {"a.root": 1.0})
    second = rollout("b", [make_call("b.1", 10, agent="writer")], {"b.root": 0.0})
    found = samples_of([first, second], "policy", choices(group_by="task-agent"), GATE)
    assert [sample.drop_reason for sample in found.all] == ["", "singleton_group", ""]
    assert np.isclose(found.all[0].advantage, 0.5 / (0.5**0.5 + 1e-6))


def test_a_call_without_tokens_has_no_advantage_of_tokens(make_call: MakeCall) -> None:
    empty = make_call("a.1", 10, response_token_ids=np.zeros(0, np.int64), logprobs=np.zeros(0, np.float32))
    rollouts = [
        rollout("a", [empty, make_call("a.2", 20)], {"a.root": 1.0}),
        rollout("b", [make_call("b.1", 1)], {"b.root": 0}),
    ]
    found = samples_of(rollouts, "policy", choices(estimator="reinforce_plus_plus"), GATE)
    assert (found.all[0].advantage, found.all[0].drop_reason) == (0.0, "no_tokens")


def test_what_a_policy_masks_is_no_failure_of_the_gate(make_call: MakeCall) -> None:
    cut = make_call("a.1", 10, finish_reason="length", prompt_token_ids=np.zeros(101, np.int64))
    rollouts = [rollout("a", [cut], {"a.root": 1.0}), rollout("b", [make_call("b.1", 1)], {"b.root": 0.0})]
    assert credits(rollouts, choices({"truncation": "mask"}))["a.1"] == (1.0, "failed_truncation")
    assert credits(rollouts, choices({"truncation": "keep"}))["a.1"] == (1.0, "too_long")
