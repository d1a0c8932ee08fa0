"""Samples: transitions with their credit, their advantage and the verdict whether they are trained on.

Invariant: advantages first, drops after. A group's statistics include every rewarded rollout of the group
that has a transition, also those whose samples are dropped, so that no drop changes what the others are
measured against.
"""

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
    none.
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
    def group(self) -> str:
        """Rollouts of one task are measured against each other; a rollout without a task against none."""
        return f"task {self.task_id}" if self.task_id else f"rollout {self.rollout_id} {self.attempt}"


@dataclass(frozen=True, eq=False)
class Sample:
    """One transition as the trainer sees it: what becomes a row of `train_samples`.

    `grouped`: whether its rollout has enough others to be measured against. `drop_reason`: empty when it is
    trained on.
    """

    transition: Transition
    credit: float
    advantage: float
    grouped: bool
    drop_reason: str

    @property
    def used(self) -> bool:
        """Whether the sample is trained on."""
        return not self.drop_reason

    @property
    def rollout(self) -> Attempt:
        """The attempt that the sample is from."""
        return self.transition.call.rollout_id, self.transition.call.attempt


def samples_of(
    rollouts: Iterable[Rollout], policy: str, *, scheme: str, estimator: str, min_group: int, gate: Gate
) -> list[Sample]:
    """The samples of `policy` in one batch of rewarded rollouts, ordered by rollout, start and span id."""
    groups: dict[str, list[tuple[list[Transition], NDArray[np.float64]]]] = defaultdict(list)
    for rollout in rollouts:
        chosen = [item for item in transitions_of(rollout.calls, rollout.rewards) if item.call.policy == policy]
        if chosen:
            groups[rollout.group].append((chosen, SCHEMES[scheme](chosen, rollout.rewards)))
    samples = [
        sample for members in groups.values() for sample in _of_group(members, ESTIMATORS[estimator], min_group, gate)
    ]
    return sorted(samples, key=lambda sample: (*sample.rollout, *_order(sample.transition)))


def _order(transition: Transition) -> tuple[int, str]:
    return transition.call.started_ns, transition.call.span_id


def _of_group(
    members: Sequence[tuple[list[Transition], NDArray[np.float64]]],
    estimator: Estimator,
    min_group: int,
    gate: Gate,
) -> list[Sample]:
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
            grouped,
            gate.drop_reason(transition.call) or group_reason,
        )
        for (transitions, credit), advantage in zip(members, advantages, strict=True)
        for index, transition in enumerate(transitions)
    ]


def rows_of(samples: Sequence[Sample]) -> list[Row]:
    """One row per used sample, in order, weighted so that every rollout counts the same (`rollout-mean`).

    A token's weight is 1 / (N * trainable tokens of its rollout). N counts all rollouts that have a group,
    also those without signal or with every sample dropped: a batch in which half the groups are solved takes
    half a step, whatever else is in it.
    """
    n_rollouts = len({sample.rollout for sample in samples if sample.grouped})
    used = [sample for sample in samples if sample.used]
    tokens: Counter[Attempt] = Counter()
    for sample in used:
        tokens[sample.rollout] += len(sample.transition.call.response_token_ids)
    return [
        Row(
            prompt_token_ids=sample.transition.call.prompt_token_ids,
            response_token_ids=sample.transition.call.response_token_ids,
            behaviour_logprobs=sample.transition.call.logprobs,
            advantage=sample.advantage,
            weight=1.0 / (n_rollouts * tokens[sample.rollout]),
        )
        for sample in used
    ]
