"""Samples: statistics before drops, reasons of groups, weights that count rollouts."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantage import Options
from trainer.batch_choices import Choices
from trainer.config import DataConfig
from trainer.failures import FailurePolicy
from trainer.gate import Gate
from trainer.merging import rows_of
from trainer.reward_sets import Given, RewardSet
from trainer.rollout import Rollout
from trainer.samples import Sample, Samples, samples_of
from trainer.transitions import Call

GATE = Gate(max_prompt_tokens=100, max_response_tokens=100, max_staleness=1, lineage=[0, 1, 2])

MakeRollout = Callable[..., Rollout]


@pytest.fixture(scope="session")
def rollout(make_call: Callable[..., Call]) -> MakeRollout:
    def make(name: str, reward: float, n_calls: int = 1, task: str = "t", **changes: Any) -> Rollout:
        values = {"policy_version": 2, **changes}
        calls = [
            make_call(f"{name}.{index}", index, rollout_id=name, task_id=task, **values) for index in range(n_calls)
        ]
        return Rollout(
            rollout_id=name,
            attempt=0,
            task_id=task,
            trace_id="ab" * 16,
            root_span_id=f"{name}.root",
            status="succeeded",
            error_type="",
            split="train",
            reward=reward,
            calls=calls,
            given=[Given(f"{name}.root", "answer", reward)],
            rewards={f"{name}.root": reward},
        )

    return make


def judged(rollouts: Sequence[Rollout], min_group: int = 2) -> Samples:
    return samples_of(rollouts, "policy", Choices(min_group=min_group), GATE)


def samples(rollouts: Sequence[Rollout], min_group: int = 2) -> Sequence[Sample]:
    return judged(rollouts, min_group).all


def weights(found: Samples) -> list[float]:
    """Of each used sample, the weight of its tokens."""
    rows, _ = rows_of(found, merge=False, max_row_tokens=1000)
    for row in rows:
        assert len(set(row.weights[row.mask])) == 1
        assert not row.weights[~row.mask].any()
    return [float(row.weights[row.mask][0]) for row in rows]


def test_worked_example_2_weights_per_call_token(rollout: MakeRollout) -> None:
    found = judged([rollout("a", 1, n_calls=3), rollout("b", 1), rollout("c", 0)])
    assert [sample.advantage for sample in found.all] == pytest.approx([0.5773] * 4 + [-1.1547], abs=1e-4)
    tokens = len(found.all[0].transition.call.response_token_ids)
    assert weights(found) == pytest.approx([1 / (3 * 3 * tokens)] * 3 + [1 / (3 * tokens)] * 2)


def test_three_rollouts_in_six_rows_have_mass_one(rollout: MakeRollout) -> None:
    found = judged([rollout("a", 1, n_calls=3), rollout("b", 1, n_calls=2), rollout("c", 0)])
    assert len(weights(found)) == 6
    assert sum(2 * weight for weight in weights(found)) == pytest.approx(1.0)


def test_advantages_come_before_drops(rollout: MakeRollout) -> None:
    found = judged([rollout("a", 1), rollout("b", 1, policy_version=0), rollout("c", 0)])
    assert [sample.advantage for sample in found.all] == pytest.approx([0.5773, 0.5773, -1.1547], abs=1e-4)
    assert [sample.drop_reason for sample in found.all] == ["", "stale", ""]
    assert weights(found) == pytest.approx([1 / 6, 1 / 6])


def test_a_partly_dropped_rollout_still_weighs_as_one(rollout: MakeRollout, make_call: Callable[..., Call]) -> None:
    long = make_call("a.9", 9, rollout_id="a", policy_version=2, prompt_token_ids=np.zeros(101, np.int64))
    first = rollout("a", 1, n_calls=2)
    mixed = Rollout(**{**vars(first), "calls": [*first.calls, long]})
    found = judged([mixed, rollout("b", 0)])
    assert [sample.drop_reason for sample in found.all] == ["", "", "too_long", ""]
    assert weights(found) == pytest.approx([1 / 8, 1 / 8, 1 / 4])


def test_a_group_of_one_is_dropped_and_a_flat_group_counts_without_training(rollout: MakeRollout) -> None:
    found = judged(
        [
            rollout("a", 1, task="one"),
            rollout("b", 1, task="flat"),
            rollout("c", 1, task="flat"),
            rollout("d", 0, task="good"),
            rollout("e", 1, task="good"),
        ]
    )
    reasons = {sample.rollout[0]: sample.drop_reason for sample in found.all}
    assert reasons == {"a": "singleton_group", "b": "no_signal", "c": "no_signal", "d": "", "e": ""}
    assert [sample.advantage for sample in found.all[:3]] == [0, 0, 0]
    assert weights(found) == pytest.approx([1 / 8, 1 / 8])


def test_rollouts_without_a_task_are_not_a_group(rollout: MakeRollout) -> None:
    found = samples([rollout("a", 1, task=""), rollout("b", 0, task="")])
    assert {sample.drop_reason for sample in found} == {"singleton_group"}


def test_a_larger_minimum_drops_pairs(rollout: MakeRollout) -> None:
    found = judged([rollout("a", 1), rollout("b", 0)], min_group=3)
    assert {sample.drop_reason for sample in found.all} == {"singleton_group"}
    assert weights(found) == []


def test_only_the_policys_calls_are_samples(rollout: MakeRollout) -> None:
    found = samples([rollout("a", 1), rollout("b", 0), rollout("c", 0, policy="other")])
    assert [sample.rollout[0] for sample in found] == ["a", "b"]
    assert [sample.advantage for sample in found] == pytest.approx([0.7071, -0.7071], abs=1e-4)


def test_a_rollout_that_failed_before_it_had_a_sample_counts_in_its_group(rollout: MakeRollout) -> None:
    failed = {"trainable": False, "untrainable_reason": "error"}
    for without in (rollout("c", 0, n_calls=0), rollout("c", 0, **failed)):
        found = judged([rollout("a", 1), rollout("b", 1), without])
        assert [sample.rollout[0] for sample in found.all] == ["a", "b"]
        assert [sample.advantage for sample in found.all] == pytest.approx([0.5773, 0.5773], abs=1e-4)
        assert weights(found) == pytest.approx([1 / 6, 1 / 6])
    others = rollout("c", 0, policy="other", **failed)
    assert {sample.drop_reason for sample in samples([rollout("a", 1), rollout("b", 1), others])} == {"no_signal"}


def test_only_the_chosen_agents_are_samples(rollout: MakeRollout, make_call: Callable[..., Call]) -> None:
    agents = ("writer", "rewriter", "checker")
    first, second = (
        replace(
            rollout(name, reward),
            calls=[
                make_call(f"{name}.{agent}", number, rollout_id=name, policy_version=2, agent=agent)
                for number, agent in enumerate(agents)
            ],
        )
        for name, reward in (("a", 1), ("b", 0))
    )
    for chosen, expected in ((("writer", "re.*"), {"writer", "rewriter"}), (("write",), set()), ((), set(agents))):
        found = samples_of([first, second], "policy", Choices(agents=chosen), GATE).all
        assert {sample.transition.call.agent for sample in found} == expected


def test_several_policies_in_one_trace_train_each_on_its_own_calls(
    rollout: MakeRollout, make_call: Callable[..., Call]
) -> None:
    pair = []
    for name, reward in (("a", 1.0), ("b", 0.0)):
        calls = [
            make_call(f"{name}.{number}", number, rollout_id=name, policy=policy, policy_version=2)
            for number, policy in enumerate(["writer", "critic", "writer"])
        ]
        one = replace(rollout(name, reward), calls=calls, given=[Given(f"{name}.1", "critique", reward)])
        pair.append(one)
    of_writer = samples_of(pair, "writer", Choices(scheme="step"), GATE).all
    of_critic = samples_of(pair, "critic", Choices(scheme="step"), GATE).all
    assert [(sample.transition.call.span_id, sample.credit) for sample in of_writer] == [
        ("a.0", 0.0),
        ("a.2", 0.0),
        ("b.0", 0.0),
        ("b.2", 0.0),
    ]
    assert [(sample.transition.call.span_id, sample.credit) for sample in of_critic] == [("a.1", 1.0), ("b.1", 0.0)]


def test_a_reward_set_counts_some_rewards_with_weights(rollout: MakeRollout) -> None:
    def with_rewards(name: str, answer: float, failed: float) -> Rollout:
        given = [Given(f"{name}.root", "answer", answer), Given(f"{name}.0", "rule.tool_failed", failed)]
        return replace(rollout(name, answer), given=given)

    batch = [with_rewards("a", 1, -1), with_rewards("b", 0, -1), replace(rollout("c", 1), given=[])]

    def credits(weights: dict[str, float] | None) -> list[tuple[float, str]]:
        found = samples_of(batch, "policy", Choices(reward_set=RewardSet(weights)), GATE).all
        return [(sample.credit, sample.drop_reason) for sample in found]

    assert credits(None) == [(0.0, ""), (-1.0, ""), (0.0, "no_reward")]
    assert credits({"answer": 2.0}) == [(2.0, ""), (0.0, ""), (0.0, "no_reward")]
    assert credits({"answer": 1.0, "rule.*": 0.5}) == [(0.5, ""), (-0.5, ""), (0.0, "no_reward")]
    assert credits({"rule.*": 0.5, "rule.tool_failed": 3.0})[0] == (-3.0, "no_signal")
    assert credits({"unheard of": 1.0}) == [(0.0, "no_reward")] * 3


def test_the_largest_rewards_and_weights_that_there_can_be_overflow_nowhere(rollout: MakeRollout) -> None:
    def judged(name: str, score: float) -> Rollout:
        return replace(rollout(name, 0), given=[Given(f"{name}.root", rule, score) for rule in ("rule.a", "rule.b")])

    batch = [judged("a", 1e30), judged("b", -1e30), judged("c", 1e30)]
    found = samples_of(batch, "policy", Choices(reward_set=RewardSet({"rule.*": 1e6})), GATE).all
    assert [sample.credit for sample in found] == [2e36, -2e36, 2e36]
    assert all(np.isfinite(sample.advantage) and sample.advantage for sample in found)


def test_what_failed_is_dropped_masked_penalised_or_kept(rollout: MakeRollout) -> None:
    batch = [rollout("a", 1), rollout("b", 0), replace(rollout("c", 0), status="timeout", error_type="timeout")]

    def judged_with(action: str) -> tuple[list[tuple[float, float, str]], Samples]:
        data = DataConfig.model_validate({"on_failure": {"timeout": action}, "penalty": -2.0})
        choices = Choices(failures=FailurePolicy.from_config(data), penalty=data.penalty)
        found = samples_of(batch, "policy", choices, GATE)
        return [(sample.credit, round(sample.advantage, 4), sample.drop_reason) for sample in found.all], found

    kept, found = judged_with("keep")
    assert kept == [(1.0, 1.1547, ""), (0.0, -0.5773, ""), (0.0, -0.5773, "")]
    assert found.failures == {("timeout", "keep"): 1}
    assert judged_with("mask")[0] == [*kept[:2], (0.0, -0.5773, "failed_timeout")]
    dropped, found = judged_with("drop")
    assert dropped == [(1.0, 0.7071, ""), (0.0, -0.7071, ""), (0.0, 0.0, "failed_timeout")]
    assert found.n_grouped == 2
    penalised, _ = judged_with("penalize")
    assert [credit for credit, _, _ in penalised] == [1.0, 0.0, -2.0]
    assert penalised[2][2] == ""


def test_a_call_that_failed_is_judged_by_itself(rollout: MakeRollout, make_call: Callable[..., Call]) -> None:
    batch = []
    for name, reward in (("a", 1), ("b", 0)):
        calls = [
            make_call(f"{name}.{number}", number, rollout_id=name, policy_version=2, finish_reason=reason)
            for number, reason in enumerate(["stop", "length"])
        ]
        batch.append(replace(rollout(name, reward), calls=calls))

    def judged_with(action: str) -> list[tuple[str, float, str]]:
        data = DataConfig.model_validate({"on_failure": {"truncation": action}, "penalty": -2.0})
        choices = Choices(failures=FailurePolicy.from_config(data), penalty=data.penalty)
        found = samples_of(batch, "policy", choices, GATE).all
        return [(sample.transition.call.span_id, sample.credit, sample.drop_reason) for sample in found]

    assert judged_with("keep") == [("a.0", 1, ""), ("a.1", 1, ""), ("b.0", 0, ""), ("b.1", 0, "")]
    assert judged_with("mask")[1::2] == [("a.1", 1, "failed_truncation"), ("b.1", 0, "failed_truncation")]
    assert judged_with("penalize") == [("a.0", 1, ""), ("a.1", -1, ""), ("b.0", 0, ""), ("b.1", -2, "")]
    assert judged_with("drop")[1] == ("a.1", 0, "failed_truncation")


def test_token_level_advantages_reach_the_rows(rollout: MakeRollout) -> None:
    choices = Choices(estimator="reinforce_plus_plus", options=Options(gamma=0.5))
    found = samples_of([rollout("a", 1), rollout("b", 0)], "policy", choices, GATE)
    rows, _ = rows_of(found, merge=False, max_row_tokens=1000)
    first = found.all[0].token_advantages
    assert first.shape == (2,)
    assert first[0] < first[1]
    assert found.all[0].advantage == pytest.approx(first.mean())
    assert rows[0].advantages[rows[0].mask] == pytest.approx(first)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 4), st.booleans()),
        max_size=9,
    ),
    st.randoms(use_true_random=False),
)
def test_every_rollout_weighs_the_same_in_any_order(
    rollout: MakeRollout, shapes: list[tuple[str, float, int, bool]], shuffler: random.Random
) -> None:
    rollouts = [
        rollout(f"r{number}", reward, n_calls, task, policy_version=2 if fresh else 0)
        for number, (task, reward, n_calls, fresh) in enumerate(shapes)
    ]
    batch = judged(rollouts)
    found = batch.all
    shuffler.shuffle(rollouts)
    assert samples_summary(samples(rollouts)) == samples_summary(found)

    tasks = [rollout.task_id for rollout in rollouts]
    assert batch.n_grouped == sum(tasks.count(task) > 1 for task in tasks)
    mass: dict[object, float] = defaultdict(float)
    for sample, weight in zip(batch.used, weights(batch), strict=True):
        mass[sample.rollout] += weight * len(sample.transition.call.response_token_ids)
    assert [value * batch.n_grouped for value in mass.values()] == pytest.approx([1.0] * len(mass))
    for task in "abc":
        of_task = {sample.rollout: sample.advantage for sample in found if sample.transition.call.task_id == task}
        assert sum(of_task.values()) == pytest.approx(0, abs=1e-9), "a group's advantages balance"


def samples_summary(found: Sequence[Sample]) -> list[tuple[object, ...]]:
    return [(sample.transition.call.span_id, round(sample.advantage, 9), sample.drop_reason) for sample in found]
