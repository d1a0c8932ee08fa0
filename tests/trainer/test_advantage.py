"""Advantages: the worked examples, statistics over rollouts, and what becomes of groups that cannot measure."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_rollouts import flat, returns, rollout, without_calls

from tracegrad.errors import TracegradError
from trainer.advantage import ESTIMATORS, Advantages, Measured, Options, advantages, has_signal, statistics
from trainer.choices import ESTIMATOR_NAMES

GROUPED = [name for name, estimator in ESTIMATORS.items() if estimator.grouped]
WITHOUT_CRITIC = [name for name, estimator in ESTIMATORS.items() if not estimator.needs_values]


def measured(name: str, rollouts: list[Measured], **choices: object) -> Advantages:
    return advantages(rollouts, ESTIMATORS[name], Options(), **choices)  # type: ignore[arg-type]


def test_every_name_that_can_be_chosen_is_an_estimator() -> None:
    assert sorted(ESTIMATORS) == sorted(ESTIMATOR_NAMES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("grpo", [0.5773, 0.5773, -1.1547]), ("dr_grpo", [1 / 3, 1 / 3, -2 / 3]), ("rloo", [0.5, 0.5, -1])],
)
def test_worked_example_1_returns_1_1_0_with_one_call_each(name: str, expected: list[float]) -> None:
    found = measured(name, returns(1, 1, 0))
    assert flat(found.per_call) == pytest.approx(expected, abs=1e-4)
    assert found.reasons == ["", "", ""]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_worked_example_2_more_calls_leave_the_advantage_of_a_rollout_unchanged(name: str) -> None:
    one_call_each = flat(measured(name, returns(1, 1, 0)).per_call)
    found = measured(name, [rollout("task", [1, 1, 1]), *returns(1, 0)])
    assert [len(of_rollout) for of_rollout in found.per_call] == [3, 1, 1]
    assert flat(found.per_call) == pytest.approx([one_call_each[0]] * 3 + one_call_each[1:], abs=1e-12)


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 9)), min_size=2, max_size=6))
def test_the_number_of_calls_changes_nothing(rollouts: list[tuple[float, int]]) -> None:
    many = measured("grpo", [rollout("task", [value] * n_calls) for value, n_calls in rollouts]).per_call
    one = measured("grpo", returns(*(value for value, _ in rollouts))).per_call
    for of_many, of_one in zip(many, flat(one), strict=True):
        assert flat([of_many]) == pytest.approx([of_one] * len(of_many), rel=1e-6, abs=1e-6)


def test_spread_inside_rollouts_counts() -> None:
    mu, sigma = statistics([np.array([1.0, 0.0]), np.array([0.5])])
    assert mu == pytest.approx(0.5)
    assert sigma == pytest.approx(0.5)
    assert statistics([np.array([1.0, 0.0])]) == (0.5, 0.0)


def test_close_rewards_stay_apart() -> None:
    better, worse = flat(measured("grpo", returns(0.951, 0.95)).per_call)
    assert better > 0.5 > -0.5 > worse


def test_rounding_is_no_signal() -> None:
    assert not has_signal([np.array([0.1 + 0.2]), np.array([0.3])])
    assert not has_signal([np.array([0.0]), np.array([0.0])])


@pytest.mark.parametrize("name", [name for name in GROUPED if not ESTIMATORS[name].batch_wide])
def test_groups_do_not_measure_each_other(name: str) -> None:
    """So that a listing may take a batch in parts, as long as groups stay whole."""
    group, other = returns(3, 1, 2), returns(7, 9, group="other")
    beside = measured(name, [*group, *other]).per_call
    assert flat(beside) == flat([*measured(name, group).per_call, *measured(name, other).per_call])


def test_what_whitens_says_that_it_looks_at_the_whole_batch() -> None:
    group, other = returns(3, 1, 2), returns(7, 90, group="other")
    for name in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        assert ESTIMATORS[name].batch_wide
        assert flat(measured(name, [*group, *other]).per_call[:3]) != flat(measured(name, group).per_call)


@pytest.mark.parametrize("name", GROUPED)
def test_a_group_of_one_and_a_group_without_spread_are_not_trained(name: str) -> None:
    batch = [*returns(1, 0, group="good"), *returns(1, group="alone"), *returns(0.1 + 0.2, 0.3, group="solved")]
    found = measured(name, batch)
    assert found.reasons == ["", "", "singleton_group", "no_signal", "no_signal"]
    assert not np.any(flat(found.per_call[2:]))
    assert flat([found.per_call[0]])[0] > 0 > flat([found.per_call[1]])[0]


@pytest.mark.parametrize("name", GROUPED)
def test_groups_smaller_than_wanted_are_singletons(name: str) -> None:
    found = measured(name, [*returns(1, 0, group="two"), *returns(1, 0, 0, group="three")], min_group=3)
    assert found.reasons == ["singleton_group"] * 2 + [""] * 3


def test_a_dropped_singleton_does_not_shift_what_others_are_whitened_by() -> None:
    batch = returns(1, 0, group="good")
    beside = [*batch, *returns(50, group="alone")]
    name = "reinforce_plus_plus_baseline"
    assert flat(measured(name, beside).per_call[:2]) == flat(measured(name, batch).per_call)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", 0.5 / (0.5477226 + 1e-6)),
        ("dr_grpo", 0.5),
        ("rloo", 0.5 * 6 / 5),
        ("gigpo", 0.5 / (0.5477226 + 1e-6)),
        ("reinforce_plus_plus_baseline", 0.5 / np.sqrt(12 * 0.25 / 11)),
    ],
)
def test_singletons_measured_by_the_batch(name: str, expected: float) -> None:
    """Mean 0.5 and deviation sqrt(0.3) over the batch's six rollouts; sqrt(3/11) over its twelve tokens."""
    batch = [*returns(1, 1, 0), *returns(1, group="alone"), *returns(0, 0, group="failed")]
    found = measured(name, batch, singleton="batch")
    assert found.reasons == [""] * 4 + ["no_signal"] * 2
    assert flat(found.per_call[3:4]) == pytest.approx([expected] * len(flat(found.per_call[3:4])), abs=1e-6)
    assert flat(found.per_call[:3]) == flat(measured(name, batch).per_call[:3])
    assert not np.any(flat(found.per_call[4:]))


@pytest.mark.parametrize("name", GROUPED)
def test_the_batch_cannot_measure_a_singleton_that_is_all_of_it(name: str) -> None:
    found = measured(name, [rollout("alone", [1.0, 0.0])], singleton="batch")
    assert found.reasons == ["singleton_group"]
    assert not np.any(flat(found.per_call))


@pytest.mark.parametrize("name", GROUPED)
def test_singletons_that_are_all_alike_have_no_signal(name: str) -> None:
    found = measured(name, [*returns(1, group="a"), *returns(1, group="b")], singleton="batch")
    assert found.reasons == ["no_signal", "no_signal"]
    assert not np.any(flat(found.per_call))


def test_an_estimator_without_groups_drops_none() -> None:
    found = measured("reinforce_plus_plus", [*returns(1, group="a"), *returns(0, group="b"), *returns(1, group="c")])
    assert found.reasons == ["", "", ""]
    assert flat(found.per_call[:1])[0] > 0 > flat(found.per_call[1:2])[0]
    alike = measured("reinforce_plus_plus", [*returns(1, group="a"), *returns(1, group="b")])
    assert alike.reasons == ["no_signal", "no_signal"]
    assert not np.any(flat(alike.per_call))


def test_the_credit_of_a_call_is_discounted_per_token_to_its_beginning() -> None:
    batch = [rollout("a", [1.0, 2.0], tokens=[3, 1]), rollout("b", [0.0])]
    found = advantages(batch, ESTIMATORS["reinforce_plus_plus"], Options(gamma=0.5)).per_call
    raw = np.array([0.25, 0.5, 1.0, 2.0, 0.0, 0.0])
    assert [len(of_call) for of_rollout in found for of_call in of_rollout] == [3, 1, 2]
    assert flat(found) == pytest.approx((raw - raw.mean()) / raw.std(ddof=1), abs=1e-6)


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
def test_a_rollout_without_calls_counts_in_its_group(name: str) -> None:
    batch = [rollout("task", [1.0, 1.0]), without_calls("task", 0.0)]
    found = measured(name, batch)
    assert found.reasons == ["", ""]
    assert [len(of_rollout) for of_rollout in found.per_call] == [2, 1]
    alone = measured(name, batch[:1])
    assert alone.reasons == ["singleton_group" if ESTIMATORS[name].grouped else "no_signal"]
    if ESTIMATORS[name].grouped and name != "reinforce_plus_plus_baseline":
        assert all(value > 0 for value in flat(found.per_call[:1]))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_rollouts_no_advantages(name: str) -> None:
    found = measured(name, [])
    assert (found.per_call, found.reasons) == ([], [])


@pytest.mark.parametrize("name", WITHOUT_CRITIC)
@pytest.mark.parametrize("singleton", ["drop", "batch"])
def test_the_order_of_rollouts_does_not_matter(name: str, singleton: str) -> None:
    random = np.random.default_rng(7)
    batch = [
        rollout(f"group {index % 5}", list(random.normal(size=1 + index % 3)), tokens=[1 + index % 4] * (1 + index % 3))
        for index in range(12)
    ] + returns(3, group="alone")
    order = list(random.permutation(len(batch)))
    found = measured(name, batch, singleton=singleton)
    shuffled = measured(name, [batch[index] for index in order], singleton=singleton)
    for place, index in enumerate(order):
        assert shuffled.reasons[place] == found.reasons[index]
        assert flat([shuffled.per_call[place]]) == pytest.approx(flat([found.per_call[index]]), abs=1e-9)


def test_ppo_without_a_critic_says_so() -> None:
    with pytest.raises(TracegradError, match=r"needs a critic's value .* choose another algorithm\.name"):
        measured("ppo", returns(1, 0))


def test_ppo_with_values_of_other_lengths_says_so() -> None:
    wrong = replace(rollout("task a", [1.0]), values=[np.zeros(3)])
    with pytest.raises(TracegradError, match=r"task a are not one per response token of each call: .* \[3\] for \[2\]"):
        measured("ppo", [wrong])


def test_ppo_trains_equal_credits_too() -> None:
    batch = [
        replace(one, values=[np.array([value, 0.5])]) for one, value in zip(returns(1, 1), (0.2, 0.9), strict=True)
    ]
    found = measured("ppo", [*batch, without_calls("task", 0.0)])
    assert found.reasons == ["", "", ""]
    assert flat(found.per_call[:1])[0] > flat(found.per_call[1:2])[0]
