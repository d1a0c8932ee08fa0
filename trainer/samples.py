"""Samples: transitions with their credit, their advantage and the verdict whether they are trained on.

Invariant: advantages first, drops after. A group's statistics include every rewarded rollout of the group, also
those whose samples are dropped and those that failed before they had any, so that no drop changes what the others
are measured against.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.advantage import ESTIMATORS, Estimator, has_signal
from trainer.credit import SCHEMES
from trainer.gate import Gate
from trainer.rows import Row
from trainer.transitions import Attempt, Call, Transition, transitions_of


@dataclass(frozen=True, eq=False)
class Rollout:
    """One attempt of an agent on a task, with all its calls and rewards.

    `rewards`: span id to the sum of the newest rewards given to it. `reward`: their sum; None when there are
    none. `root_span_id`: empty where no launcher ran the agent.
    """

    rollout_id: str
    attempt: int
    task_id: str
    trace_id: str
    root_span_id: str
    status: str
    split: str
    reward: float | None
    calls: Sequence[Call]
    rewards: Mapping[str, float]

    @property
    def key(self) -> Attempt:
        """What tells this attempt from every other."""
        return self.rollout_id, self.attempt

    @property
    def own_span_id(self) -> str:
        """The span that stands for the rollout as a whole: its root, or else its first call."""
        first = min(self.calls, key=lambda call: (call.started_ns, call.span_id), default=None)
        return self.root_span_id or (first.span_id if first is not None else "")

    @property
    def group(self) -> str:
        """Rollouts of one task are measured against each other; a rollout without a task against none."""
        return f"task {self.task_id}" if self.task_id else f"rollout {self.rollout_id} {self.attempt}"


@dataclass(frozen=True, eq=False)
class Sample:
    """One transition as the trainer sees it: what becomes a row of `train_samples`.

    `drop_reason`: empty when it is trained on.
    """

    transition: Transition
    credit: float
    advantage: float
    drop_reason: str

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
    """

    all: Sequence[Sample]
    n_grouped: int

    @property
    def used(self) -> list[Sample]:
        """Those that are trained on."""
        return [sample for sample in self.all if sample.used]


def samples_of(
    rollouts: Iterable[Rollout], policy: str, *, scheme: str, estimator: str, min_group: int, gate: Gate
) -> Samples:
    """The samples of `policy` in one batch of rewarded rollouts.

    A rollout none of whose calls became a transition of `policy` has no sample. Its return still counts in its group,
    unless every call that it made was of other policies or models: then it says nothing about this one.
    """
    groups: dict[str, list[_Member]] = defaultdict(list)
    for rollout in rollouts:
        chosen = [item for item in transitions_of(rollout.calls, rollout.rewards) if item.call.policy == policy]
        if chosen:
            groups[rollout.group].append((chosen, SCHEMES[scheme](chosen, rollout.rewards)))
        elif not rollout.calls or any(call.policy == policy for call in rollout.calls):
            groups[rollout.group].append(([], np.array([math.fsum(rollout.rewards.values())])))
    samples = [
        sample for members in groups.values() for sample in _of_group(members, ESTIMATORS[estimator], min_group, gate)
    ]
    samples.sort(key=lambda sample: (*sample.rollout, *_order(sample.transition)))
    return Samples(samples, sum(len(members) for members in groups.values() if len(members) >= min_group))


def _order(transition: Transition) -> tuple[int, str]:
    return transition.call.started_ns, transition.call.span_id


_Member = tuple[list[Transition], NDArray[np.float64]]
"""The transitions of one rollout and their credits; the return alone where there are no transitions."""


def _of_group(members: Sequence[_Member], estimator: Estimator, min_group: int, gate: Gate) -> list[Sample]:
    credits = [credit for _, credit in members]
    grouped = len(members) >= min_group
    signal = has_signal(credits)
    advantages = estimator(credits) if signal else [np.zeros_like(credit) for credit in credits]
    group_reason = "" if grouped and signal else "no_signal" if grouped else "singleton_group"
    return [
        Sample(
            transition,
            float(credit[index]),
            float(advantage[index]),
            gate.drop_reason(transition.call) or group_reason,
        )
        for (transitions, credit), advantage in zip(members, advantages, strict=True)
        for index, transition in enumerate(transitions)
    ]


def rows_of(samples: Samples) -> list[Row]:
    """One row per used sample, in order, weighted so that every rollout counts the same (`rollout-mean`).

    A token's weight is 1 / (N * trainable tokens of its rollout). N counts all rollouts that have a group,
    also those without signal and those without a sample that is used: a batch in which half the groups are solved
    takes half a step, whatever else is in it.
    """
    tokens: Counter[Attempt] = Counter()
    for sample in samples.used:
        tokens[sample.rollout] += len(sample.transition.call.response_token_ids)
    return [
        Row(
            prompt_token_ids=sample.transition.call.prompt_token_ids,
            response_token_ids=sample.transition.call.response_token_ids,
            behaviour_logprobs=sample.transition.call.logprobs,
            advantage=sample.advantage,
            weight=1.0 / (samples.n_grouped * tokens[sample.rollout]),
        )
        for sample in samples.used
    ]
