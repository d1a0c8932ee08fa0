"""The training data for people and other programs: every transition in the store, with credit and advantage.

A transition's advantage is measured within its batch: the step that consumed it or, where none has, all that is not yet
consumed. So the numbers of a trained transition are those that it was trained with, given the same choices.

Groups are judged some at a time, and lines made of some rollouts at a time, so tokens of few are in memory; only an
estimator that looks at a whole batch needs a whole batch.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tracegrad.errors import InputError
from trainer.advantage import estimator_named
from trainer.batch_choices import Choices
from trainer.config import EngineConfig
from trainer.gate import Gate
from trainer.members import NO_REWARD
from trainer.rollout import Rollout
from trainer.samples import Sample, samples_of
from trainer.since import Since
from trainer.store import Recorded, Store
from trainer.transitions import Attempt, Transition, transitions_of

CAME_LATE = "came_late"
FINISHED = frozenset({"succeeded", "failed", "timeout"})
GATE = Gate(
    max_prompt_tokens=EngineConfig.model_fields["max_prompt_tokens"].default,
    max_response_tokens=EngineConfig.model_fields["max_response_tokens"].default,
    max_staleness=0,
    lineage=None,
)
"""What a step with default limits would drop; age is left out, as it depends on when the step is made."""
ROLLOUTS_AT_ONCE = 500


@dataclass(frozen=True)
class Wanted:
    """What to list; None means all. `since`: rollouts that started after it. `choices`: how they are judged.

    `one_advantage`: where the advantages of one that is used differ from token to token, their mean is not enough.
    """

    since: Since
    choices: Choices = field(default_factory=Choices)
    gate: Gate = GATE
    advantages: bool = True
    one_advantage: bool = False
    rollout_id: str | None = None
    task_id: str | None = None
    agent: str | None = None
    policy: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What a step did with a transition or, where `step_id` is empty, would do.

    `advantage` None: no step would look, or nobody asked. `varies`: it is the mean of those of single tokens, which
    differ.
    """

    step_id: str
    credit: float
    advantage: float | None
    used: bool
    drop_reason: str
    varies: bool = False


Verdicts = dict[tuple[str, str], Verdict]
"""By policy and span id."""


def list_transitions(store: Store, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """One dictionary per transition, with the fields of the contract, by rollout id, start and span id.

    Raises InputError where one advantage was wanted and there are several.
    """
    shown, needed = _attempts(store, wanted)
    verdicts: dict[Attempt, Verdicts] = {}
    kept: list[Rollout] = []
    parts = list(_parts(needed, wanted))
    for part in parts:
        kept = store.filled(part)
        for key, found in judge(kept, store.recorded(part), wanted).items():
            if key in shown:
                verdicts[key] = found
    order = sorted((rollout for rollout in needed if rollout.key in shown), key=lambda rollout: rollout.key)
    if len(parts) <= 1:
        filled: Iterable[Rollout] = sorted(kept, key=lambda rollout: rollout.key)
    else:
        filled = (rollout for part in _slices(order) for rollout in store.filled(part))
    for rollout in filled:
        if rollout.key in verdicts:
            yield from _lines(rollout, verdicts.pop(rollout.key), wanted)


def judged_attempt(store: Store, key: Attempt, wanted: Wanted) -> tuple[Rollout, list[Rollout], Verdicts]:
    """One attempt, filled, those of its group that it is measured with, and the verdicts on its transitions.

    `wanted`: of its rollout.
    """
    _, needed = _attempts(store, wanted)
    part = next(part for part in _parts(needed, wanted) if any(rollout.key == key for rollout in part))
    filled, recorded = store.filled(part), store.recorded(part)
    attempt = next(rollout for rollout in filled if rollout.key == key)
    batches, left = _batches(filled, recorded, wanted)
    beside = {
        member.key: member
        for members in batches.values()
        if any(member.key == key for member in members)
        for member in members
        if member.group == attempt.group
    }
    return attempt, list(beside.values()), _verdicts(filled, batches, left, recorded, wanted)[key]


def _attempts(store: Store, wanted: Wanted) -> tuple[set[Attempt], list[Rollout]]:
    """The attempts to show, and all that are needed to judge them: a group is measured as a whole.

    Policies are judged apart, so that other policies' attempts are not needed for one. A rollout that was asked for is
    there in any case.
    """
    rollout_ids = [wanted.rollout_id] if wanted.rollout_id is not None else []
    task_ids = [wanted.task_id] if wanted.task_id is not None else []
    shown = store.rollouts(wanted.since, rollout_ids, task_ids, None if rollout_ids else wanted.policy)
    beside: list[Rollout] = []
    everything = Since(0, untrained_only=False)
    if shown and wanted.advantages and _batch_wide(wanted.choices):
        beside = store.rollouts(everything, policy=wanted.policy)
    elif tasks := sorted({rollout.task_id for rollout in shown} - {""}):
        beside = store.rollouts(everything, task_ids=tasks, policy=wanted.policy)
    needed = {rollout.key: rollout for rollout in (*shown, *beside)}
    return {rollout.key for rollout in shown}, list(needed.values())


def _parts(rollouts: Sequence[Rollout], wanted: Wanted) -> Iterator[list[Rollout]]:
    """Whole groups, some at a time; everything at once where an estimator looks beyond groups."""
    if _batch_wide(wanted.choices):
        yield list(rollouts)
        return
    groups: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.group].append(rollout)
    part: list[Rollout] = []
    for group in groups.values():
        part += group
        if len(part) >= ROLLOUTS_AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def _batch_wide(choices: Choices) -> bool:
    return estimator_named(choices.estimator).batch_wide or choices.singleton == "batch"


def _slices(rollouts: Sequence[Rollout]) -> Iterator[Sequence[Rollout]]:
    for start in range(0, len(rollouts), ROLLOUTS_AT_ONCE):
        yield rollouts[start : start + ROLLOUTS_AT_ONCE]


def judge(
    rollouts: Sequence[Rollout], recorded: Mapping[tuple[str, str], Recorded], wanted: Wanted
) -> dict[Attempt, Verdicts]:
    """Per attempt, the verdicts on its transitions. `rollouts`: whole groups, filled. `recorded`: what steps did."""
    return _verdicts(rollouts, *_batches(rollouts, recorded, wanted), recorded, wanted)


_Batches = dict[tuple[str, str], list[Rollout]]
"""Policy and step (empty: the next one) to the rollouts that it measures."""
_Left = list[tuple[Rollout, str, str]]
"""Who is in no batch: of which policy, and why."""


def _verdicts(
    rollouts: Sequence[Rollout],
    batches: _Batches,
    left: _Left,
    recorded: Mapping[tuple[str, str], Recorded],
    wanted: Wanted,
) -> dict[Attempt, Verdicts]:
    verdicts: dict[Attempt, Verdicts] = {rollout.key: {} for rollout in rollouts}
    for rollout, policy, reason in left:
        for sample in samples_of([rollout], policy, wanted.choices, wanted.gate).all:
            key = policy, sample.transition.call.span_id
            verdicts[rollout.key][key] = _verdict(recorded.get(key), sample.credit, None, reason)
    for (policy, step), members in batches.items():
        for sample in samples_of(members, policy, wanted.choices, wanted.gate).all:
            key = policy, sample.transition.call.span_id
            advantage = sample.advantage if wanted.advantages else None
            # Jobs take an attempt once: what came after it was consumed is left.
            reason = CAME_LATE if step and key not in recorded else sample.drop_reason
            verdict = _verdict(recorded.get(key), sample.credit, advantage, reason)
            verdicts[sample.rollout][key] = replace(verdict, varies=wanted.advantages and _varies(sample))
    return verdicts


def _batches(
    rollouts: Sequence[Rollout], recorded: Mapping[tuple[str, str], Recorded], wanted: Wanted
) -> tuple[_Batches, _Left]:
    called: _Batches = defaultdict(list)
    died: list[Rollout] = []
    left: _Left = []
    for rollout in map(wanted.choices.reward_set.weighed, rollouts):
        policies = {call.policy for call in rollout.calls} - {""}
        if reason := _not_looked_at(rollout, wanted.choices.penalized_statuses):
            left += [(rollout, policy, reason) for policy in policies]
            continue
        for policy in policies:
            spans = [rollout.own_span_id, *(call.span_id for call in rollout.calls)]
            consumed = [recorded[policy, span] for span in spans if (policy, span) in recorded]
            newest = max(consumed, key=lambda one: (one.step_started_ns, one.step_id), default=None)
            called[policy, newest.step_id if newest is not None else ""].append(rollout)
        if not rollout.calls:
            died.append(rollout)
    batches: _Batches = {}
    for (policy, step), members in called.items():
        rewarded = {rollout.group for rollout in members if rollout.reward is not None}
        # Where nobody was graded yet, a penalty has nothing to be measured against.
        left += [(rollout, policy, NO_REWARD) for rollout in members if rollout.group not in rewarded]
        beside = [rollout for rollout in died if _step_of(policy, rollout.own_span_id, recorded) == step]
        batches[policy, step] = [rollout for rollout in (*members, *beside) if rollout.group in rewarded]
    return batches, left


def _verdict(recorded: Recorded | None, credit: float, advantage: float | None, reason: str) -> Verdict:
    if recorded is None:
        return Verdict("", credit, advantage, not reason, reason)
    return Verdict(recorded.step_id, credit, advantage, recorded.used, recorded.drop_reason)


def _varies(sample: Sample) -> bool:
    return bool(np.any(sample.token_advantages != sample.token_advantages.flat[:1]))


def _step_of(policy: str, span_id: str, recorded: Mapping[tuple[str, str], Recorded]) -> str:
    found = recorded.get((policy, span_id))
    return found.step_id if found is not None else ""


def _not_looked_at(rollout: Rollout, penalized: AbstractSet[str]) -> str:
    if rollout.split == "eval":
        return "eval"
    if rollout.reward is None and rollout.task_id and rollout.status in penalized:
        return ""
    if rollout.status in FINISHED:
        return NO_REWARD if rollout.reward is None else ""
    # Without a root span, a rollout is over when it has its reward and has been silent for a while.
    return rollout.status if rollout.status != "running" or rollout.reward is None else ""


def _lines(rollout: Rollout, verdicts: Verdicts, wanted: Wanted) -> Iterator[dict[str, Any]]:
    for transition in transitions_of(rollout.calls, wanted.choices.reward_set.weighed(rollout).rewards):
        call = transition.call
        verdict = verdicts.get((call.policy, call.span_id))
        if verdict is None or (wanted.since.untrained_only and verdict.step_id):
            continue
        if wanted.agent in (None, call.agent) and wanted.policy in (None, call.policy):
            if wanted.one_advantage and verdict.used and verdict.varies:
                raise InputError(
                    f"advantages of {wanted.choices.estimator} differ from token to token, as in call {call.span_id}, "
                    "and such an export has one for each transition: give --no-advantage and let verl compute them"
                )
            yield _line(rollout, transition, verdict)


def _line(rollout: Rollout, transition: Transition, verdict: Verdict) -> dict[str, Any]:
    call, following = transition.call, transition.next_call
    return {
        "rollout_id": call.rollout_id,
        "attempt": call.attempt,
        "task_id": rollout.task_id,
        "agent": call.agent,
        "trace_id": call.trace_id,
        "span_id": call.span_id,
        "index": transition.index,
        "prompt_token_ids": call.prompt_token_ids,
        "response_token_ids": call.response_token_ids,
        "logprobs": call.logprobs,
        "reward": transition.reward,
        "credit": verdict.credit,
        "advantage": verdict.advantage,
        "next_span_id": following.span_id if following is not None else None,
        "next_prompt_token_ids": following.prompt_token_ids if following is not None else None,
        "terminal": transition.terminal,
        "policy": call.policy,
        "policy_version": call.policy_version,
        "started_at": iso_time(call.started_ns),
        "used": verdict.used,
        "drop_reason": verdict.drop_reason or None,
    }


def iso_time(at_ns: int) -> str:
    """ISO 8601 in UTC, to the nanosecond: `2026-01-31T12:00:00.123456789Z`. Sorts as the times do."""
    seconds, rest = divmod(at_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
