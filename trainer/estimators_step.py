"""GiGPO: groups within groups (Feng et al., arXiv 2505.10978). Calls with one state form a group of their own.

    A_E(i) = (R_i - mean of R over the group) / F_norm
    A_S(i, t) = (R_it - mean of R over all calls of the group in the same state) / F_norm
    A(i, t) = A_E(i) + omega A_S(i, t)

R_i is the return, R_it the credit: with the scheme `discounted` it is the paper's discounted return. A state is the
prompt's token ids. A rollout that comes to one state several times is in its step group as often. A call that nobody
else's state equals has A_S = 0. Deviations are unbiased, and 1e-6 is added to them.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.measured import EPSILON, ROUNDING, Measured, Options, PerCall, one_per_call


def gigpo(rollouts: Sequence[Measured], options: Options) -> PerCall:
    """A_E + omega A_S, per call."""
    episode = _relative(_returns(rollouts), [rollout.group for rollout in rollouts], options)
    step = _relative(np.concatenate([rollout.credits for rollout in rollouts]), _steps(rollouts), options)
    ends = np.cumsum([len(rollout.credits) for rollout in rollouts])
    of_rollouts = np.split(options.step_weight * step, ends[:-1])
    return [one_per_call(a_e + a_s) for a_e, a_s in zip(episode, of_rollouts, strict=True)]


def gigpo_signal(rollouts: Sequence[Measured], options: Options) -> bool:
    """Whether the returns of one group differ, or the credits in any state."""
    return any(np.any(advantage) for of_rollout in gigpo(rollouts, options) for advantage in of_rollout)


def _returns(rollouts: Sequence[Measured]) -> NDArray[np.float64]:
    return np.array([rollout.ret for rollout in rollouts], np.float64)


def _steps(rollouts: Sequence[Measured]) -> list[Hashable]:
    """What tells the step group of each call from all others; a call without a state has one of its own."""
    return [
        (rollout.group, state) if state else (index, number)
        for index, rollout in enumerate(rollouts)
        for number, state in enumerate(rollout.states)
    ]


def _relative(values: NDArray[np.float64], keys: Sequence[Hashable], options: Options) -> NDArray[np.float64]:
    """Each value against those with the same key; exactly 0 where they are equal but for rounding."""
    numbers: dict[Hashable, int] = {}
    of_value = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    counts = np.bincount(of_value)
    centred = values - (np.bincount(of_value, values) / counts)[of_value]
    low, high = np.full(len(counts), np.inf), np.full(len(counts), -np.inf)
    np.minimum.at(low, of_value, values)
    np.maximum.at(high, of_value, values)
    differs = high - low > ROUNDING * np.maximum(np.abs(high), np.abs(low))
    deviation = np.sqrt(np.bincount(of_value, centred**2) / np.maximum(counts - 1, 1))
    scale = deviation + EPSILON if options.f_norm == "std" else np.ones(len(counts))
    return np.where(differs[of_value], centred / scale[of_value], 0.0)
