"""What an advantage estimator sees of a batch, and the statistics that it measures credits by (learning.md Level 2).

Statistics are over rollouts, not rows: for N rollouts with n_i calls and credits c_ij,
    mu = (1/N) sum_i (1/n_i) sum_j c_ij,    sigma^2 = (1/(N-1)) sum_i (1/n_i) sum_j (c_ij - mu)^2,
so a rollout with ten calls counts once. verl's estimators know rows and no rollouts, and its scores are float32:
`compute_grpo_outcome_advantage` over rows would count that rollout ten times. The formulas are therefore ours, in
float64; where each rollout is one row they equal verl's functions to 1e-6, which tests show.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tracegrad.errors import TracegradError

EPSILON = 1e-6
ROUNDING = 1e-12
"""Spread, relative to the credits, that can come from rounding alone."""

Credits = Sequence[NDArray[np.float64]]
"""Per rollout, the credits of its calls: (n_i,), n_i > 0."""
PerCall = list[list[NDArray[np.float64]]]
"""Per rollout, one array per call: shape (), the same for all of its response tokens, or (r,), one for each."""


@dataclass(frozen=True, eq=False)
class Measured:
    """One rollout, with the calls of one policy in it.

    `group`: those of equal groups are measured against each other. `credits` (n,): of the n calls. `ret`: the return,
    the sum of all rewards. `states`: equal where two calls had equal prompts; empty where there is no state.
    `n_tokens` (n,): response tokens of each call. `values`: a critic's, per call (r,); None without a critic.
    A rollout without calls still counts in its group, as one call: credits [ret], states [b""], n_tokens [0].
    """

    group: str
    credits: NDArray[np.float64]
    ret: float
    states: tuple[bytes, ...]
    n_tokens: NDArray[np.int64]
    values: Sequence[NDArray[np.float64]] | None = None


@dataclass(frozen=True)
class Options:
    """`gamma`, `lam`: discount and lambda per token. `step_weight`, `f_norm`: omega and F_norm of GiGPO, where F_norm
    is the deviation ("std") or 1 ("none").
    """

    gamma: float = 1.0
    lam: float = 1.0
    step_weight: float = 1.0
    f_norm: Literal["std", "none"] = "std"


Estimator = Callable[[Sequence[Measured], Options], PerCall]
"""Gets all rollouts of a batch at once, and looks at `group` itself: some statistics are over the whole batch."""


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


def members_of_groups(rollouts: Sequence[Measured]) -> dict[str, list[int]]:
    """Group to the indices of its rollouts, in order."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, rollout in enumerate(rollouts):
        groups[rollout.group].append(index)
    return groups


def one_per_call(of_rollout: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """(n,) as n arrays of shape ()."""
    return [np.asarray(of_call, np.float64) for of_call in of_rollout]


def require_values(rollouts: Sequence[Measured]) -> None:
    """Raises TracegradError where a critic's values are missing or are not one per response token."""
    for rollout in rollouts:
        if rollout.values is None:
            if np.any(rollout.n_tokens):
                raise TracegradError(
                    "this advantage estimator needs a critic's value of every response token, and there is no critic: "
                    "choose another algorithm.name, such as grpo"
                )
        elif [np.shape(values) for values in rollout.values] != [(n,) for n in rollout.n_tokens.tolist()]:
            raise TracegradError(
                f"a critic's values of a rollout in {rollout.group} are not one per response token of each call: "
                f"there are {[len(values) for values in rollout.values]} for {rollout.n_tokens.tolist()} tokens"
            )
