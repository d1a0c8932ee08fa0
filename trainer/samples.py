"""Samples: transitions with their credit, their advantage and the verdict whether they are trained on.

Invariant: advantages first, drops after. A group's statistics include every rewarded rollout of the group, also those
whose samples are dropped and those that failed before they had any, so that no drop changes what the others are
measured against. Only what the failure policy drops is out of everything.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from trainer.advantage import Measured, advantages, estimator_named
from trainer.batch_choices import Choices
from trainer.choices import OnFailure
from trainer.credit import Execution, scheme_named
from trainer.failures import errors_of_call, errors_of_rollout, overflowed
from trainer.gate import Gate
from trainer.reward_sets import Given
from trainer.spans import Span, SpanTree
from trainer.tool_requests import tool_requests
from trainer.transitions import Attempt, Call, Transition, order_of, transitions_of

NO_REWARD = "no_reward"


@dataclass(frozen=True, eq=False)
class Rollout:
    """One attempt of an agent on a task, with all its calls, spans and rewards.

    `given`: the newest evaluations of its spans. `rewards`: span id to the sum of those that count. `reward`: their
    sum; None when there are none. `root_span_id`: empty where no launcher ran the agent. `error_type`: of its root.
    """

    rollout_id: str
    attempt: int
    task_id: str
    trace_id: str
    root_span_id: str
    status: str
    error_type: str
    split: str
    reward: float | None
    calls: Sequence[Call] = ()
    spans: Sequence[Span] = ()
    given: Sequence[Given] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)

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

    `token_advantages`: shape (), the same for every response token, or (r,), one for each. `drop_reason`: empty when it
    is trained on.
    """

    transition: Transition
    credit: float
    token_advantages: NDArray[np.float64]
    drop_reason: str

    @property
    def advantage(self) -> float:
        """The mean over its response tokens."""
        return float(np.mean(self.token_advantages))

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


@dataclass(frozen=True, eq=False)
class _Member:
    """One rollout as its group measures it. `masked`: span id to why a transition is measured and not trained on."""

    rollout: Rollout
    execution: Execution
    credits: NDArray[np.float64]
    masked: Mapping[str, str]

    @property
    def transitions(self) -> Sequence[Transition]:
        """Those that are measured."""
        return self.execution.transitions

    @property
    def measured(self) -> Measured:
        """What an estimator sees of it."""
        calls = [transition.call for transition in self.transitions]
        states = [blake2b(call.prompt_token_ids.tobytes(), digest_size=16).digest() for call in calls]
        return Measured(
            group=self.rollout.group,
            credits=self.credits,
            ret=self.execution.ret,
            states=tuple(states) or (b"",),
            n_tokens=np.array([len(call.response_token_ids) for call in calls] or [0], np.int64),
            values=None,
        )


def samples_of(rollouts: Iterable[Rollout], policy: str, choices: Choices, gate: Gate) -> Samples:
    """The samples of `policy` in one batch of rewarded rollouts.

    A rollout none of whose calls became a transition of `policy` has no sample. Its return still counts in its group,
    unless every call that it made was of other policies or models: then it says nothing about this one.
    """
    batch = _Batch(policy, choices)
    for rollout in rollouts:
        if not rollout.calls or any(call.policy == policy for call in rollout.calls):
            batch.add(choices.reward_set.weighed(rollout))
    found = advantages(
        [member.measured for member in batch.members],
        estimator_named(choices.estimator),
        choices.options,
        singleton=choices.singleton,
        min_group=choices.min_group,
    )
    samples = batch.left_out + [
        Sample(
            transition,
            float(member.credits[index]),
            per_call[index],
            gate.drop_reason(transition.call) or member.masked.get(transition.call.span_id, "") or reason,
        )
        for member, per_call, reason in zip(batch.members, found.per_call, found.reasons, strict=True)
        for index, transition in enumerate(member.transitions)
    ]
    samples.sort(key=lambda sample: (*sample.rollout, *order_of(sample.transition.call)))
    n_grouped = sum(reason != "singleton_group" for reason in found.reasons)
    return Samples(samples, n_grouped, dict(batch.failures))


def execution_of(rollout: Rollout, policy: str, choices: Choices) -> Execution | None:
    """One rollout as its credits are assigned, penalties included; None where it is out of everything."""
    batch = _Batch(policy, choices)
    batch.add(choices.reward_set.weighed(rollout))
    return batch.members[0].execution if batch.members else None


class _Batch:
    """Rollouts with their credits, before they are measured against each other."""

    def __init__(self, policy: str, choices: Choices) -> None:
        self._policy = policy
        self._choices = choices
        self._scheme = scheme_named(choices.scheme)
        self.members: list[_Member] = []
        self.left_out: list[Sample] = []
        self.failures: Counter[tuple[str, str]] = Counter()

    def add(self, rollout: Rollout) -> None:
        """Assign the rollout's credits; where it is out of everything, only say so of each transition."""
        rewards = dict(rollout.rewards)
        error, action = self._failure_of(rollout)
        if action == "penalize":
            rewards[rollout.root_span_id] = rewards.get(rollout.root_span_id, 0.0) + self._choices.penalty
        selected = [
            item
            for item in transitions_of(rollout.calls, rewards)
            if item.call.policy == self._policy and self._choices.takes(item.call.agent)
        ]
        if action == "drop" or not rewards:
            self._leave_out(selected, f"failed_{error}" if action == "drop" else NO_REWARD)
            return
        masked = {item.call.span_id: f"failed_{error}" for item in selected if action == "mask"}
        tree = SpanTree(rollout.spans, rollout.root_span_id)
        requests = tool_requests(tree, rollout.calls, [item.call for item in selected])
        selected = self._without_failed_calls(rollout, selected, requests, rewards, masked)
        execution = Execution(selected, rewards, tree, requests, self._choices.credit_gamma)
        credits = self._scheme(execution) if selected else np.array([execution.ret])
        self.members.append(_Member(rollout, execution, credits, masked))

    def _failure_of(self, rollout: Rollout) -> tuple[str | None, OnFailure]:
        if self._choices.failures is None:
            return None, "keep"
        error = errors_of_rollout(rollout.status, rollout.error_type, rollout.calls, rollout.spans)
        if error is None:
            return None, "keep"
        action = self._choices.failures.of(error)
        self.failures[error, action] += 1
        return error, action

    def _without_failed_calls(
        self,
        rollout: Rollout,
        selected: Sequence[Transition],
        requests: Mapping[str, str],
        rewards: dict[str, float],
        masked: dict[str, str],
    ) -> list[Transition]:
        """The transitions that stay. What the others did to `rewards` and `masked` is noted there."""
        policy = self._choices.failures
        if policy is None:
            return list(selected)
        tools: dict[str, list[Span]] = defaultdict(list)
        for span in rollout.spans:
            if (asking := requests.get(span.span_id)) is not None:
                tools[asking].append(span)
        full = overflowed(rollout.calls, rollout.spans)
        staying: list[Transition] = []
        for item in selected:
            span_id = item.call.span_id
            errors = errors_of_call(item.call, tools.get(span_id, ()), context_full=span_id in full)
            self.failures.update((error, policy.of(error)) for error in errors)
            error, action = policy.strictest(errors)
            if action == "drop":
                self._leave_out([item], f"failed_{error}")
                continue
            if action == "mask":
                masked.setdefault(span_id, f"failed_{error}")
            elif action == "penalize":
                rewards[span_id] = rewards.get(span_id, 0.0) + self._choices.penalty
            staying.append(replace(item, reward=rewards.get(span_id, 0.0)))
        return staying

    def _leave_out(self, transitions: Iterable[Transition], reason: str) -> None:
        self.left_out += [Sample(transition, 0.0, np.zeros(()), reason) for transition in transitions]
