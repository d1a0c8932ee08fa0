"""GiGPO equals the formulas of Feng et al. (arXiv 2505.10978), written down literally."""

import statistics
from typing import Literal

import numpy as np
import pytest
from measured_rollouts import flat, returns, rollout, without_calls

from trainer.advantage import ESTIMATORS, Measured, Options, advantages

GIGPO = ESTIMATORS["gigpo"]
FNorm = Literal["std", "none"]


def by_the_formulas(group: list[Measured], omega: float, f_norm: FNorm) -> list[list[float]]:
    """A = A_E + omega A_S of one group."""

    def relative(value: float, among: list[float]) -> float:
        if len(among) < 2:
            return 0.0
        return (value - statistics.mean(among)) / (statistics.stdev(among) + 1e-6 if f_norm == "std" else 1.0)

    episode_group = [one.ret for one in group]
    step_groups: dict[bytes, list[float]] = {}
    for one in group:
        for state, credit in zip(one.states, one.credits, strict=True):
            step_groups.setdefault(state, []).append(float(credit))
    return [
        [
            relative(one.ret, episode_group) + omega * relative(float(credit), step_groups[state])
            for state, credit in zip(one.states, one.credits, strict=True)
        ]
        for one in group
    ]


@pytest.mark.parametrize("f_norm", ["std", "none"])
@pytest.mark.parametrize("seed", range(10))
def test_equals_the_formulas(seed: int, f_norm: FNorm) -> None:
    random = np.random.default_rng(seed)
    groups = [
        [
            rollout(
                f"task {number}",
                list(random.normal(size=n_calls)),
                ret=float(random.normal()),
                states="".join(random.choice(list("abcdef"), size=n_calls)),
            )
            for n_calls in random.integers(1, 6, size=4).tolist()
        ]
        for number in range(3)
    ]
    omega = [1.0, 0.5, 0.0][seed % 3]
    found = advantages([one for group in groups for one in group], GIGPO, Options(step_weight=omega, f_norm=f_norm))
    expected = [
        value for group in groups for of_rollout in by_the_formulas(group, omega, f_norm) for value in of_rollout
    ]
    assert flat(found.per_call) == pytest.approx(expected, abs=1e-9)
    assert set(found.reasons) == {""}


def test_calls_in_one_state_are_compared_however_their_rollouts_end() -> None:
    group = [rollout("task", [1.0, 1.0], states="ab"), rollout("task", [0.0, 0.0], states="ac")]
    (better, alone), (worse, _) = advantages(group, GIGPO, Options(f_norm="none")).per_call
    assert (float(better), float(alone), float(worse)) == (1.0, 0.5, -1.0)


def test_a_state_that_a_rollout_comes_back_to_counts_each_time() -> None:
    group = [rollout("task", [0.0, 0.0, 3.0], ret=0, states="aab"), rollout("task", [3.0], ret=0, states="a")]
    found = advantages(group, GIGPO, Options(f_norm="none"))
    assert flat(found.per_call) == pytest.approx([-1.0, -1.0, 0.0, 2.0])


def test_equal_returns_are_a_signal_where_a_state_tells_calls_apart() -> None:
    apart = [rollout("task", [0.9, 1.0], ret=1, states="ab"), rollout("task", [1.0], ret=1, states="a")]
    assert advantages(apart, GIGPO, Options()).reasons == ["", ""]
    assert advantages(apart, GIGPO, Options(step_weight=0)).reasons == ["no_signal"] * 2
    alike = [rollout("task", [0.9, 1.0], ret=1, states="ab"), rollout("task", [0.9, 1.0], ret=1, states="ab")]
    assert advantages(alike, GIGPO, Options()).reasons == ["no_signal"] * 2


def test_the_same_state_in_another_task_is_another_state() -> None:
    batch = [
        rollout(task, [credit], states="a") for task, credit in (("one", 1.0), ("one", 0.0), ("two", 9.0), ("two", 8.0))
    ]
    found = advantages(batch, GIGPO, Options(f_norm="none"))
    assert flat(found.per_call) == pytest.approx([1.0, -1.0, 1.0, -1.0])


def test_singletons_have_no_steps_in_common() -> None:
    batch = [rollout("one", [1.0], states="a"), rollout("two", [0.0], states="a")]
    found = advantages(batch, GIGPO, Options(f_norm="none"), singleton="batch")
    assert flat(found.per_call) == pytest.approx([0.5, -0.5])


def test_rollouts_without_calls_have_no_state_in_common() -> None:
    batch = [without_calls("task", 0.0), without_calls("task", 3.0), *returns(0)]
    found = advantages(batch, GIGPO, Options(f_norm="none"))
    assert flat(found.per_call) == pytest.approx([-1.0, 2.0, -1.0])
