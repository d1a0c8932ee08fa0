"""Credit and advantages reproduce the worked examples and verl's own function."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.advantage import grpo, has_signal, statistics
from trainer.credit import identical


def one_call_each(returns: list[float]) -> list[np.ndarray]:
    return [np.array([value]) for value in returns]


def test_worked_example_1_returns_1_1_0_with_one_call_each() -> None:
    advantages = np.concatenate(grpo(one_call_each([1, 1, 0])))
    assert advantages == pytest.approx([0.5773, 0.5773, -1.1547], abs=1e-4)


def test_worked_example_2_more_calls_leave_the_advantage_of_a_rollout_unchanged() -> None:
    first, second, third = grpo([np.array([1.0, 1.0, 1.0]), np.array([1.0]), np.array([0.0])])
    assert first == pytest.approx([0.5773] * 3, abs=1e-4)
    assert second == pytest.approx([0.5773], abs=1e-4)
    assert third == pytest.approx([-1.1547], abs=1e-4)


def test_worked_example_4_identical_credit_sums_the_whole_tree() -> None:
    rewards: Mapping[str, float] = {"root": 1.0, "tool": 0.1}
    credits = identical([object(), object()], rewards)  # type: ignore[list-item]
    assert credits.dtype == np.float64
    assert credits == pytest.approx([1.1, 1.1])


def test_identical_credit_does_not_depend_on_the_order_of_rewards() -> None:
    scores = [0.1, 0.2, 0.3, 1e16, -1e16, 0.7]
    one = identical([object()], {str(index): score for index, score in enumerate(scores)})  # type: ignore[list-item]
    other = identical([object()], {str(index): score for index, score in enumerate(scores[::-1])})  # type: ignore[list-item]
    assert one[0] == other[0] == pytest.approx(1.3)


def test_spread_inside_rollouts_counts() -> None:
    mu, sigma = statistics([np.array([1.0, 0.0]), np.array([0.5])])
    assert mu == pytest.approx(0.5)
    assert sigma == pytest.approx(0.5)


def test_close_rewards_stay_apart() -> None:
    assert has_signal(one_call_each([0.95, 0.951]))
    better, worse = np.concatenate(grpo(one_call_each([0.951, 0.95])))
    assert better > 0.5 > -0.5 > worse


def test_rounding_is_no_signal() -> None:
    assert not has_signal(one_call_each([0.1 + 0.2, 0.3]))
    assert not has_signal(one_call_each([0.0, 0.0]))


Groups = st.lists(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=6), min_size=1, max_size=4)


@settings(deadline=None, max_examples=50)
@given(Groups)
def test_equals_verl_where_each_rollout_is_one_row(groups: list[list[float]]) -> None:
    torch = pytest.importorskip("torch")
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    scores = torch.tensor([value for group in groups for value in group], dtype=torch.float64)[:, None]
    index = np.array([str(number) for number, group in enumerate(groups) for _ in group], dtype=object)
    theirs, _ = compute_grpo_outcome_advantage(scores, torch.ones_like(scores), index)
    ours = np.concatenate([part for group in groups for part in grpo(one_call_each(group))])
    assert ours == pytest.approx(theirs[:, 0].numpy(), abs=1e-6, rel=1e-6)


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 9)), min_size=2, max_size=6),
)
def test_the_number_of_calls_changes_nothing(rollouts: list[tuple[float, int]]) -> None:
    spread_out = grpo([np.full(n_calls, value) for value, n_calls in rollouts])
    flat = grpo(one_call_each([value for value, _ in rollouts]))
    for of_calls, of_one in zip(spread_out, flat, strict=True):
        assert of_calls == pytest.approx(np.full(len(of_calls), of_one[0]), rel=1e-6, abs=1e-6)
