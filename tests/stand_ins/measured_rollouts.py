"""Rollouts as advantage estimators see them, each written down in one line."""

from itertools import count

import numpy as np

from trainer.measured import Measured, PerCall

_NUMBERS = count()


def rollout(
    group: str, credits: list[float], *, ret: float | None = None, states: str = "", tokens: list[int] | None = None
) -> Measured:
    """One rollout. `states`: one letter per call; without them every call is in a state of its own."""
    own = [f"state {next(_NUMBERS)}" for _ in credits]
    return Measured(
        group=group,
        credits=np.array(credits, np.float64),
        ret=credits[0] if ret is None else ret,
        states=tuple(state.encode() for state in (states or own)),
        n_tokens=np.array(tokens or [2] * len(credits), np.int64),
    )


def without_calls(group: str, ret: float) -> Measured:
    """A rollout that failed before it had a call of the policy."""
    return Measured(group, np.array([ret]), ret, (b"",), np.array([0], np.int64))


def returns(*values: float, group: str = "task") -> list[Measured]:
    """One group, one call each."""
    return [rollout(group, [value]) for value in values]


def flat(per_call: PerCall) -> list[float]:
    """All advantages, one call after the other."""
    return [float(value) for of_rollout in per_call for of_call in of_rollout for value in np.atleast_1d(of_call)]
