"""Advantages (learning.md Level 2): credits measured against the other rollouts of their group.

Statistics are over rollouts, not rows: for N rollouts with n_i calls and credits c_ij,
    mu = (1/N) sum_i (1/n_i) sum_j c_ij,    sigma^2 = (1/(N-1)) sum_i (1/n_i) sum_j (c_ij - mu)^2,
so a rollout with ten calls counts once. verl's estimators know rows and no rollouts, and its scores are
float32: `compute_grpo_outcome_advantage` over rows would count that rollout ten times. The formula is
therefore here, in float64; where each rollout is one row it equals verl's function to 1e-6, which a test
shows.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Credits = Sequence[NDArray[np.float64]]
"""Per rollout of one group, the credits of its calls: (n_i,), n_i > 0."""
Estimator = Callable[[Credits], list[NDArray[np.float64]]]

EPSILON = 1e-6
ROUNDING = 1e-12
"""Spread, relative to the credits, that can come from rounding alone."""


def statistics(credits: Credits) -> tuple[float, float]:
    """Mean and deviation over the rollouts of one group, mu and sigma above; one rollout deviates by 0."""
    mu = float(np.mean([np.mean(of_rollout) for of_rollout in credits]))
    if len(credits) < 2:
        return mu, 0.0
    squares = [np.mean((of_rollout - mu) ** 2) for of_rollout in credits]
    return mu, float(np.sqrt(np.sum(squares) / (len(credits) - 1)))


def has_signal(credits: Credits) -> bool:
    """Whether the calls of a group differ in credit at all; if not, there is nothing to prefer."""
    every = np.concatenate(credits)
    return bool(np.ptp(every) > ROUNDING * np.max(np.abs(every)))


def grpo(credits: Credits) -> list[NDArray[np.float64]]:
    """(credit - mu) / (sigma + 1e-6), the group-relative advantage (Shao et al., arXiv 2402.03300)."""
    mu, sigma = statistics(credits)
    return [(of_rollout - mu) / (sigma + EPSILON) for of_rollout in credits]


ESTIMATORS: dict[str, Estimator] = {"grpo": grpo}
"""By the name that `train.toml` uses."""
