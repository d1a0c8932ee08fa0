"""Samples: transitions with their credit, their advantage and the verdict whether they are trained on.

Invariant: advantages first, drops after. A group's statistics include every rewarded rollout of the group, also those
whose samples are dropped and those that failed before they had any, so that no drop changes what the others are
measured against. Only what the failure policy drops is out of everything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.advantage import advantages, estimator_named
from trainer.batch_choices import Choices
from trainer.gate import Gate
from trainer.members import Members
from trainer.rollout import Rollout
from trainer.transitions import Attempt, Transition, order_of


@dataclass(frozen=True, eq=False)
class Sample:
    """One transition as the trainer sees it: what becomes a row of `train_samples`.

    `token_advantages`: shape (), the same for every response token, or (r,), one for each. `drop_reason`: empty when it
    is trained on.
    """

    transition: Transition
    credit: float
    token_advantages: NDArray[np.float64]
    drop_reason: str

    @property
    def advantage(self) -> float:
        """The mean over its response tokens; 0 without any."""
        return float(np.mean(self.token_advantages)) if self.token_advantages.size else 0.0

    @property
    def used(self) -> bool:
        """Whether the sample is trained on."""
        return not self.drop_reason

    @property
    def rollout(self) -> Attempt:
        """The attempt that the sample is from."""
        return self.transition.call.rollout_id, self.transition.call.attempt


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one batch of rollouts, ordered by rollout, start and span id.

    `n_grouped`: its rollouts that have enough others to be measured against, whether or not any sample is used.
    `failures`: how often an error of a type met an action, of rollouts and calls.
    """

    all: Sequence[Sample]
    n_grouped: int
    failures: Mapping[tuple[str, str], int]

    @property
    def used(self) -> list[Sample]:
        """Those that are trained on."""
        return [sample for sample in self.all if sample.used]


def samples_of(rollouts: Iterable[Rollout], policy: str, choices: Choices, gate: Gate) -> Samples:
    """The samples of `policy` in one batch of rewarded rollouts.

    A rollout none of whose calls became a transition of `policy` has no sample. Its return still counts in its group,
    unless every call that it made was of other policies or models: then it says nothing about this one.
    """
    batch = Members(policy, choices)
    for rollout in rollouts:
        if not rollout.calls or any(call.policy == policy for call in rollout.calls):
            batch.add(choices.reward_set.weighed(rollout))
    members = batch.by_agent() if choices.group_by == "task-agent" else batch.all
    found = advantages(
        [member.measured for member in members],
        estimator_named(choices.estimator),
        choices.options,
        singleton=choices.singleton,
        min_group=choices.min_group,
    )
    samples = [Sample(transition, 0.0, np.zeros(()), reason) for transition, reason in batch.left_out]
    samples += [
        Sample(
            transition,
            float(member.credits[index]),
            per_call[index],
            member.masked.get(transition.call.span_id) or gate.drop_reason(transition.call) or reason,
        )
        for member, per_call, reason in zip(members, found.per_call, found.reasons, strict=True)
        for index, transition in enumerate(member.transitions)
    ]
    samples.sort(key=lambda sample: (*sample.rollout, *order_of(sample.transition.call)))
    grouped = zip(members, found.reasons, strict=True)
    n_grouped = len({member.rollout.key for member, reason in grouped if reason != "singleton_group"})
    return Samples(samples, n_grouped, dict(batch.failures))
