"""Samples: statistics before drops, reasons of groups, weights that count rollouts."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.gate import Gate
from trainer.samples import Rollout, Sample, Samples, rows_of, samples_of
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
            split="train",
            reward=reward,
            calls=calls,
            rewards={f"{name}.root": reward},
        )

    return make


def judged(rollouts: Sequence[Rollout], min_group: int = 2) -> Samples:
    return samples_of(rollouts, "policy", scheme="identical", estimator="grpo", min_group=min_group, gate=GATE)


def samples(rollouts: Sequence[Rollout], min_group: int = 2) -> Sequence[Sample]:
    return judged(rollouts, min_group).all


def test_worked_example_2_weights_per_call_token(rollout: MakeRollout) -> None:
    found = judged([rollout("a", 1, n_calls=3), rollout("b", 1), rollout("c", 0)])
    assert [sample.advantage for sample in found.all] == pytest.approx([0.5773] * 4 + [-1.1547], abs=1e-4)
    rows = rows_of(found)
    tokens = len(rows[0].response_token_ids)
    assert [row.weight for row in rows] == pytest.approx([1 / (3 * 3 * tokens)] * 3 + [1 / (3 * tokens)] * 2)


def test_three_rollouts_in_six_rows_have_mass_one(rollout: MakeRollout) -> None:
    rows = rows_of(judged([rollout("a", 1, n_calls=3), rollout("b", 1, n_calls=2), rollout("c", 0)]))
    assert len(rows) == 6
    assert sum(row.weight * len(row.response_token_ids) for row in rows) == pytest.approx(1.0)


def test_advantages_come_before_drops(rollout: MakeRollout) -> None:
    found = judged([rollout("a", 1), rollout("b", 1, policy_version=0), rollout("c", 0)])
    assert [sample.advantage for sample in found.all] == pytest.approx([0.5773, 0.5773, -1.1547], abs=1e-4)
    assert [sample.drop_reason for sample in found.all] == ["", "stale", ""]
    assert [row.weight for row in rows_of(found)] == pytest.approx([1 / 6, 1 / 6])


def test_a_partly_dropped_rollout_still_weighs_as_one(rollout: MakeRollout, make_call: Callable[..., Call]) -> None:
    long = make_call("a.9", 9, rollout_id="a", policy_version=2, prompt_token_ids=np.zeros(101, np.int64))
    first = rollout("a", 1, n_calls=2)
    mixed = Rollout(**{**vars(first), "calls": [*first.calls, long]})
    found = judged([mixed, rollout("b", 0)])
    assert [sample.drop_reason for sample in found.all] == ["", "", "too_long", ""]
    assert [row.weight for row in rows_of(found)] == pytest.approx([1 / 8, 1 / 8, 1 / 4])


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
    assert [row.weight for row in rows_of(found)] == pytest.approx([1 / 8, 1 / 8])


def test_rollouts_without_a_task_are_not_a_group(rollout: MakeRollout) -> None:
    found = samples([rollout("a", 1, task=""), rollout("b", 0, task="")])
    assert {sample.drop_reason for sample in found} == {"singleton_group"}


def test_a_larger_minimum_drops_pairs(rollout: MakeRollout) -> None:
    found = judged([rollout("a", 1), rollout("b", 0)], min_group=3)
    assert {sample.drop_reason for sample in found.all} == {"singleton_group"}
    assert rows_of(found) == []


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
        assert [row.weight for row in rows_of(found)] == pytest.approx([1 / 6, 1 / 6])
    others = rollout("c", 0, policy="other", **failed)
    assert {sample.drop_reason for sample in samples([rollout("a", 1), rollout("b", 1), others])} == {"no_signal"}


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
    for sample, row in zip(batch.used, rows_of(batch), strict=True):
        mass[sample.rollout] += row.weight * len(row.response_token_ids)
    assert [value * batch.n_grouped for value in mass.values()] == pytest.approx([1.0] * len(mass))
    for task in "abc":
        of_task = {sample.rollout: sample.advantage for sample in found if sample.transition.call.task_id == task}
        assert sum(of_task.values()) == pytest.approx(0, abs=1e-9), "a group's advantages balance"


def samples_summary(found: Sequence[Sample]) -> list[tuple[object, ...]]:
    return [(sample.transition.call.span_id, round(sample.advantage, 9), sample.drop_reason) for sample in found]
