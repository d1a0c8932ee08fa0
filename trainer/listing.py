"""The training data for people and other programs: every transition in the store, with credit and advantage.

A transition's advantage is measured within its batch: the step that consumed it or, where none has, all that is not
yet consumed. So the numbers of a trained transition are those that it was trained with, given the same choices.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainer.config import DataConfig, EngineConfig
from trainer.credit import SCHEMES
from trainer.gate import Gate
from trainer.samples import Rollout, samples_of
from trainer.since import Since
from trainer.store import Recorded, Store
from trainer.transitions import Attempt, Transition, transitions_of

FINISHED = frozenset({"succeeded", "failed", "timeout"})
GATE = Gate(
    max_prompt_tokens=EngineConfig.model_fields["max_prompt_tokens"].default,
    max_response_tokens=EngineConfig.model_fields["max_response_tokens"].default,
    max_staleness=0,
    lineage=None,
)
"""What a step with default limits would drop; age is left out, as it depends on when the step is made."""


@dataclass(frozen=True)
class Wanted:
    """What to list; None means all. `estimator` None: no advantages. `since`: rollouts that started after it."""

    since: Since
    scheme: str
    estimator: str | None
    rollout_id: str | None = None
    task_id: str | None = None
    agent: str | None = None
    policy: str | None = None


@dataclass(frozen=True, eq=False)
class _Judged:
    """A transition with its credit. `advantage`: None where no step would look. `reason`: why it is not trained on."""

    rollout: Rollout
    transition: Transition
    credit: float
    advantage: float | None
    reason: str


def list_transitions(store: Store, wanted: Wanted) -> list[dict[str, Any]]:
    """One dictionary per transition, with the fields of the contract, by rollout id, start and span id."""
    shown, rollouts = _load(store, wanted)
    recorded = store.recorded(rollouts)
    lines = [
        _line(judged, recorded)
        for judged in _judge(rollouts, recorded, wanted)
        if judged.rollout.key in shown and _matches(judged.transition, recorded, wanted)
    ]
    lines.sort(key=lambda line: (line["rollout_id"], line["started_at"], line["span_id"]))
    return lines


def _load(store: Store, wanted: Wanted) -> tuple[set[Attempt], list[Rollout]]:
    """The attempts to show, and all that are needed to judge them: a group is measured as a whole."""
    rollout_ids = [wanted.rollout_id] if wanted.rollout_id is not None else []
    task_ids = [wanted.task_id] if wanted.task_id is not None else []
    shown = store.rollouts(wanted.since, rollout_ids, task_ids)
    needed = {rollout.key: rollout for rollout in shown}
    tasks = sorted({rollout.task_id for rollout in shown} - {""})
    if wanted.estimator is not None and tasks:
        everything = Since(0, untrained_only=False)
        needed |= {rollout.key: rollout for rollout in store.rollouts(everything, task_ids=tasks)}
    return {rollout.key for rollout in shown}, store.filled(list(needed.values()))


def _judge(rollouts: Sequence[Rollout], recorded: dict[tuple[str, str], Recorded], wanted: Wanted) -> Iterator[_Judged]:
    batches: dict[tuple[str, str], list[Rollout]] = defaultdict(list)
    died: list[Rollout] = []
    for rollout in rollouts:
        transitions = transitions_of(rollout.calls, rollout.rewards)
        if reason := _not_looked_at(rollout):
            credits = SCHEMES[wanted.scheme](transitions, rollout.rewards)
            for transition, credit in zip(transitions, credits, strict=True):
                yield _Judged(rollout, transition, float(credit), None, reason)
            continue
        for policy in {call.policy for call in rollout.calls} - {""}:
            spans = [rollout.own_span_id, *(transition.call.span_id for transition in transitions)]
            steps = [recorded[policy, span].step_id for span in spans if (policy, span) in recorded]
            batches[policy, max(steps, default="")].append(rollout)
        if not rollout.calls:
            died.append(rollout)
    for (policy, step), members in batches.items():
        members += [rollout for rollout in died if _step_of(policy, rollout.own_span_id, recorded) == step]
        by_key = {rollout.key: rollout for rollout in members}
        samples = samples_of(
            members,
            policy,
            scheme=wanted.scheme,
            estimator=wanted.estimator or "grpo",
            min_group=DataConfig.model_fields["min_group"].default,
            gate=GATE,
        )
        for sample in samples.all:
            advantage = None if wanted.estimator is None else sample.advantage
            yield _Judged(by_key[sample.rollout], sample.transition, sample.credit, advantage, sample.drop_reason)


def _step_of(policy: str, span_id: str, recorded: dict[tuple[str, str], Recorded]) -> str:
    found = recorded.get((policy, span_id))
    return found.step_id if found is not None else ""


def _not_looked_at(rollout: Rollout) -> str:
    if rollout.split == "eval":
        return "eval"
    if rollout.status in FINISHED:
        return "no_reward" if rollout.reward is None else ""
    # Without a root span, a rollout is over when it has its reward and has been silent for a while.
    return rollout.status if rollout.status != "running" or rollout.reward is None else ""


def _matches(transition: Transition, recorded: dict[tuple[str, str], Recorded], wanted: Wanted) -> bool:
    call = transition.call
    return (
        (wanted.agent is None or call.agent == wanted.agent)
        and (wanted.policy is None or call.policy == wanted.policy)
        and not (wanted.since.untrained_only and (call.policy, call.span_id) in recorded)
    )


def _line(judged: _Judged, recorded: dict[tuple[str, str], Recorded]) -> dict[str, Any]:
    call, following = judged.transition.call, judged.transition.next_call
    verdict = recorded.get((call.policy, call.span_id), Recorded("", not judged.reason, judged.reason))
    return {
        "rollout_id": call.rollout_id,
        "attempt": call.attempt,
        "task_id": judged.rollout.task_id,
        "agent": call.agent,
        "trace_id": call.trace_id,
        "span_id": call.span_id,
        "index": judged.transition.index,
        "prompt_token_ids": call.prompt_token_ids,
        "response_token_ids": call.response_token_ids,
        "logprobs": call.logprobs,
        "reward": judged.transition.reward,
        "credit": judged.credit,
        "advantage": judged.advantage,
        "next_span_id": following.span_id if following is not None else None,
        "next_prompt_token_ids": following.prompt_token_ids if following is not None else None,
        "terminal": judged.transition.terminal,
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
