"""Advantages (learning.md Level 2): credits of one batch measured against each other, before anything is dropped.

Invariant: every rollout that is handed in counts in what the others of its group are measured against, whatever is
dropped afterwards. A rollout whose group cannot measure it has zero advantages and the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tracegrad.errors import SettingsError
from tracegrad.own_function import is_own, own_function
from trainer.estimators_group import dr_grpo, grpo, rloo
from trainer.estimators_step import gigpo, gigpo_signal
from trainer.estimators_token import gae, ppo, reinforce_plus_plus, reinforce_plus_plus_baseline
from trainer.measured import (
    Estimator,
    Measured,
    Options,
    PerCall,
    has_signal,
    members_of_groups,
    one_per_call,
    require_values,
    statistics,
)
from trainer.own_estimator import own_estimator

__all__ = [
    "ESTIMATORS",
    "Advantages",
    "Estimator",
    "Measured",
    "NamedEstimator",
    "Options",
    "PerCall",
    "advantages",
    "estimator_named",
    "gae",
    "has_signal",
    "statistics",
]

Reason = Literal["", "singleton_group", "no_signal"]
Signal = Callable[[Sequence[Measured], Options], bool]
"""Whether rollouts that are measured against each other differ in anything that the estimator looks at."""


def _credits_differ(rollouts: Sequence[Measured], _: Options) -> bool:
    return has_signal([rollout.credits for rollout in rollouts])


def _anything_differs(rollouts: Sequence[Measured], options: Options) -> bool:
    return _credits_differ(rollouts, options) or has_signal([np.array([rollout.ret for rollout in rollouts])])


def _critic_tells(_: Sequence[Measured], __: Options) -> bool:
    return True


@dataclass(frozen=True)
class NamedEstimator:
    """An estimator and what it asks of a batch.

    `grouped`: it measures within groups, so a group of one has no advantage. `batch_wide`: its numbers depend on the
    whole batch, so that it must not be cut. `needs_values`: of a critic.
    """

    function: Estimator
    grouped: bool
    needs_values: bool = False
    batch_wide: bool = False
    signal: Signal = _credits_differ


ESTIMATORS: dict[str, NamedEstimator] = {
    "grpo": NamedEstimator(grpo, grouped=True),
    "dr_grpo": NamedEstimator(dr_grpo, grouped=True),
    "rloo": NamedEstimator(rloo, grouped=True),
    "reinforce_plus_plus": NamedEstimator(reinforce_plus_plus, grouped=False, batch_wide=True),
    "reinforce_plus_plus_baseline": NamedEstimator(reinforce_plus_plus_baseline, grouped=True, batch_wide=True),
    "ppo": NamedEstimator(ppo, grouped=False, needs_values=True, batch_wide=True, signal=_critic_tells),
    "gigpo": NamedEstimator(gigpo, grouped=True, signal=gigpo_signal),
}
"""By the name that `train.toml` uses."""


def estimator_named(name: str) -> NamedEstimator:
    """The estimator called `name`, or the user's own function at the path `name`, `package.module:function`.

    A function of the user's own may have the attributes `grouped`, `needs_values` and `batch_wide`. Without `grouped`
    it is taken to look at the whole batch. Raises SettingsError where there is none.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    if not is_own(name):
        raise SettingsError(
            f"there is no advantage estimator {name!r}: choose one of {', '.join(ESTIMATORS)}, or name a function of "
            "your own as package.module:function"
        )
    function = own_function(name, "advantage estimator")
    grouped = bool(getattr(function, "grouped", False))
    return NamedEstimator(
        own_estimator(name, function),
        grouped=grouped,
        needs_values=bool(getattr(function, "needs_values", False)),
        batch_wide=bool(getattr(function, "batch_wide", not grouped)),
        signal=_anything_differs,
    )


@dataclass(frozen=True, eq=False)
class Advantages:
    """`per_call`: per rollout, one array per call. `reasons`: per rollout, why it is not to be trained on.

    `singleton_group`: too few rollouts to be measured against. `no_signal`: nothing differs among them.
    """

    per_call: PerCall
    reasons: list[Reason]


def advantages(
    rollouts: Sequence[Measured],
    estimator: NamedEstimator,
    options: Options,
    *,
    singleton: Literal["drop", "batch"] = "drop",
    min_group: int = 2,
) -> Advantages:
    """The advantages of one batch, in the order of `rollouts`.

    A grouped estimator measures groups of at least `min_group`. Smaller ones are dropped or, with `singleton` "batch",
    measured against all rollouts of the batch as if these were one group, where these are enough; there are no steps
    in common then. They do not count among the tokens over which the others are whitened. An estimator that is not
    grouped measures everything, and only a batch without any signal has none.
    Raises TracegradError where it needs a critic's values and there are none, or where the user's own returns nonsense.
    """
    if estimator.needs_values:
        require_values(rollouts)
    if estimator.grouped:
        measured = _in_groups(rollouts, estimator, options, singleton, min_group)
    else:
        measured = _measured(rollouts, [list(range(len(rollouts)))], estimator, options)
    per_call: PerCall = []
    reasons: list[Reason] = []
    for index, rollout in enumerate(rollouts):
        of_calls = measured.get(index)
        per_call.append(one_per_call(np.zeros(len(rollout.credits))) if of_calls is None else of_calls)
        reasons.append("singleton_group" if index not in measured else "no_signal" if of_calls is None else "")
    return Advantages(per_call, reasons)


_OfMember = dict[int, list[NDArray[np.float64]] | None]
"""Index of a rollout to the advantages of its calls; None where there is no signal."""


def _in_groups(
    rollouts: Sequence[Measured],
    estimator: NamedEstimator,
    options: Options,
    singleton: Literal["drop", "batch"],
    min_group: int,
) -> _OfMember:
    groups = members_of_groups(rollouts).values()
    found = _measured(rollouts, [members for members in groups if len(members) >= min_group], estimator, options)
    if singleton == "batch" and len(found) < len(rollouts) >= min_group:
        batch = [replace(rollout, group="batch", states=(b"",) * len(rollout.states)) for rollout in rollouts]
        found = _measured(batch, [list(range(len(rollouts)))], estimator, options) | found
    return found


def _measured(
    rollouts: Sequence[Measured], groups: Sequence[Sequence[int]], estimator: NamedEstimator, options: Options
) -> _OfMember:
    """The members of `groups`, handed to the estimator at once."""
    members = [member for of_group in groups for member in of_group]
    if not members:
        return {}
    of_members = estimator.function([rollouts[member] for member in members], options)
    found: _OfMember = dict(zip(members, of_members, strict=True))
    for of_group in groups:
        if not estimator.signal([rollouts[member] for member in of_group], options):
            found |= dict.fromkeys(of_group)
    return found
