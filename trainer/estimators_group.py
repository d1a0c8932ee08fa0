"""Estimators that measure a credit against the other rollouts of its group, and nothing else.

A group of one has mean 0 and deviation 1, as in verl; `trainer.advantage.advantages` never lets it come to that.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.measured import EPSILON, Credits, Measured, Options, PerCall, members_of_groups, one_per_call, statistics

Relative = Callable[[NDArray[np.float64], float, float, int], NDArray[np.float64]]
"""(credits of a rollout, mu, sigma, rollouts in the group) -> their advantages."""


def grpo(rollouts: Sequence[Measured], _: Options) -> PerCall:
    """(credit - mu) / (sigma + 1e-6) (Shao et al., arXiv 2402.03300)."""
    return _within_groups(rollouts, lambda credits, mu, sigma, _n: (credits - mu) / (sigma + EPSILON))


def dr_grpo(rollouts: Sequence[Measured], _: Options) -> PerCall:
    """credit - mu: not divided, so easy and hard tasks do not weigh more than others (Liu et al., arXiv 2503.20783)."""
    return _within_groups(rollouts, lambda credits, mu, _sigma, _n: credits - mu)


def rloo(rollouts: Sequence[Measured], _: Options) -> PerCall:
    """(credit - mu) n/(n-1): what the credit is above the mean of the others (Ahmadian et al., arXiv 2402.14740)."""
    return _within_groups(rollouts, lambda credits, mu, _sigma, n: (credits - mu) * (n / max(n - 1, 1)))


def _within_groups(rollouts: Sequence[Measured], relative: Relative) -> PerCall:
    found: PerCall = [[] for _ in rollouts]
    for members in members_of_groups(rollouts).values():
        credits: Credits = [rollouts[member].credits for member in members]
        mu, sigma = statistics(credits) if len(members) > 1 else (0.0, 1.0)
        for member, of_rollout in zip(members, credits, strict=True):
            found[member] = one_per_call(relative(of_rollout, mu, sigma, len(members)))
    return found
