"""One rollout explained: what was recorded of each call, what it was given and why, and what a job makes of it.

Nothing is computed in another way than a job does: credits, verdicts and continuations come from the functions that
make rows, asked about one attempt.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracegrad.errors import InputError
from trainer.choices import ErrorType
from trainer.config import TrainConfig
from trainer.credit import Execution
from trainer.explain_calls import Following, Match, Share, followings, matches, shares
from trainer.failures import errors_of_call, errors_of_rollout, overflowed
from trainer.gate import Gate
from trainer.listing import Verdict, Wanted, judged_attempt
from trainer.members import execution_of
from trainer.records import JobDirectory
from trainer.rollout import Rollout
from trainer.spans import SpanTree
from trainer.store import Store
from trainer.tool_requests import tool_requests
from trainer.transitions import Call, Transition, order_of, transitions_of
from trainer.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class CallFacts:
    """One call. `number`: its place in the attempt, from 1. `why_inexact`: of the sidecar, empty where it is exact.

    `why_none`: why it is no transition, or none of the job's. `verdict`: None where it is none. `shares`: what its
    credit consists of; None where a scheme of the user's own does not say.
    """

    number: int
    call: Call
    why_inexact: str
    why_none: str
    errors: tuple[ErrorType, ...]
    tools: tuple[Match, ...]
    verdict: Verdict | None
    shares: tuple[Share, ...] | None
    follows: Following | None


@dataclass(frozen=True)
class RewardFacts:
    """One evaluation. `weight`: in the reward set, None where it does not count. `reaches`: numbers of calls."""

    span_id: str
    name: str
    score: float
    weight: float | None
    reaches: tuple[int, ...]


@dataclass(frozen=True)
class GroupFacts:
    """Who the rollout is measured against: those of its task that are in the same batch, itself included."""

    name: str
    rollouts: int
    reward_mean: float
    reward_std: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """Everything about one attempt. `attempts`: those that the rollout has. `penalties`: span id to what was added.

    `error`, `action`: how it failed, if it did, and what is done about that.
    """

    rollout: Rollout
    attempts: tuple[int, ...]
    tree: SpanTree
    calls: tuple[CallFacts, ...]
    rewards: tuple[RewardFacts, ...]
    penalties: Mapping[str, float]
    group: GroupFacts
    error: ErrorType | None
    action: str
    scheme: str
    gamma: float
    estimator: str


def gate_of_job(config: TrainConfig) -> Gate:
    """The gate of a job's next step, as far as its files tell: without a step yet, age is left out of account."""
    newest = JobDirectory(config.engine.checkpoints, config.job).newest()
    model = config.engine.model
    return Gate(
        max_prompt_tokens=config.engine.max_prompt_tokens,
        max_response_tokens=config.engine.max_response_tokens,
        max_staleness=config.data.max_staleness,
        lineage=newest.lineage if newest is not None else None,
        vocabulary=Vocabulary.of_model(model) if (model / "config.json").is_file() else None,
    )


def explain(
    store: Store, rollout_id: str, attempt: int | None, wanted: Wanted, model: Path | None = None
) -> Explanation:
    """The attempt, or the last one. `wanted`: of this rollout. `model`: whose tokenizer tells why calls do not merge.

    Raises InputError where there is no such rollout or attempt.
    """
    key, attempts = _key(store, rollout_id, attempt)
    rollout, measured, verdicts = judged_attempt(store, key, wanted)
    weighed = wanted.choices.reward_set.weighed(rollout)
    transitions = {item.call.span_id: item for item in transitions_of(rollout.calls, weighed.rewards)}
    tree = SpanTree(rollout.spans, rollout.root_span_id)
    ordered = sorted(rollout.calls, key=order_of)
    numbers = {call.span_id: number for number, call in enumerate(ordered, 1)}
    policies = sorted({call.policy for call in ordered} - {""})
    executions = {policy: execution_of(rollout, policy, wanted.choices) for policy in policies}
    of_call = {
        call_id: found
        for execution in executions.values()
        if execution is not None
        for call_id, found in shares(execution, wanted.choices.scheme).items()
    }
    requests = _requests(tree, ordered, list(transitions.values()), executions)
    asked = matches(tree, ordered, requests)
    follows = followings(list(transitions.values()), numbers, store.messages_of, model)
    full = overflowed(ordered, rollout.spans)
    error = errors_of_rollout(rollout.status, rollout.error_type, rollout.calls, rollout.spans)
    failures = wanted.choices.failures
    why_none = {call.span_id: _why_none(call, transitions, wanted) for call in ordered}
    return Explanation(
        rollout=weighed,
        attempts=attempts,
        tree=tree,
        calls=tuple(
            CallFacts(
                number=numbers[call.span_id],
                call=call,
                why_inexact="" if call.trainable else call.untrainable_reason or "untrainable",
                why_none=why_none[call.span_id],
                errors=errors_of_call(
                    call,
                    [tree.spans[match.span_id] for match in asked.get(call.span_id, ())],
                    context_full=call.span_id in full,
                ),
                tools=asked.get(call.span_id, ()),
                verdict=None if why_none[call.span_id] else verdicts.get((call.policy, call.span_id)),
                shares=_in_order(of_call.get(call.span_id, ()), tree),
                follows=follows.get(call.span_id),
            )
            for call in ordered
        ),
        rewards=tuple(
            RewardFacts(
                span_id=given.span_id,
                name=given.name,
                score=given.score,
                weight=wanted.choices.reward_set.weight(given.name),
                reaches=tuple(
                    numbers[call_id]
                    for call_id, found in of_call.items()
                    if any(share.span_id == given.span_id and share.amount for share in found or ())
                ),
            )
            for given in sorted(rollout.given, key=lambda given: (*_begun(tree, given.span_id), given.name))
        ),
        penalties=_penalties(weighed.rewards, executions.values()),
        group=_group(rollout, measured, wanted),
        error=error,
        action=failures.of(error) if failures is not None and error is not None else "",
        scheme=wanted.choices.scheme,
        gamma=wanted.choices.credit_gamma,
        estimator=wanted.choices.estimator,
    )


def _key(store: Store, rollout_id: str, attempt: int | None) -> tuple[tuple[str, int], tuple[int, ...]]:
    attempts = tuple(sorted(rollout.attempt for rollout in store.rollouts_named([rollout_id])))
    if not attempts:
        raise InputError(f"no rollout {rollout_id!r} in the store: `tracegrad transitions` lists those with calls")
    if attempt is not None and attempt not in attempts:
        known = ", ".join(str(one) for one in attempts)
        raise InputError(f"rollout {rollout_id!r} has no attempt {attempt}: give --attempt one of {known}")
    return (rollout_id, attempts[-1] if attempt is None else attempt), attempts


def _requests(
    tree: SpanTree,
    calls: Sequence[Call],
    transitions: Sequence[Transition],
    executions: Mapping[str, Execution | None],
) -> dict[str, str]:
    """Tool span to the call that asked for it. A tool that several policies would take for their own has the last."""
    found: dict[str, str] = {}
    for policy, execution in executions.items():
        own = [item.call for item in transitions if item.call.policy == policy]
        requests = execution.requests if execution is not None else tool_requests(tree, calls, own)
        for tool, call in requests.items():
            other = found.get(tool)
            if other is None or _started(calls, call) > _started(calls, other):
                found[tool] = call
    return found or tool_requests(tree, calls, [])


def _started(calls: Sequence[Call], span_id: str) -> tuple[int, str]:
    return next(order_of(call) for call in calls if call.span_id == span_id)


def _why_none(call: Call, transitions: Mapping[str, Transition], wanted: Wanted) -> str:
    if not call.policy:
        return "no policy: its model is only passed through"
    if call.failed:
        return f"it failed: {call.error_type or 'no response'}"
    if call.span_id not in transitions:
        return "it was asked again, so the agent never had this response"
    if wanted.policy not in (None, call.policy):
        return f"it is of policy {call.policy}, the job trains {wanted.policy}"
    if not wanted.choices.takes(call.agent):
        return f"data.agents leaves out {call.agent or 'calls of no agent'}"
    return ""


def _begun(tree: SpanTree, span_id: str) -> tuple[int, str]:
    span = tree.spans.get(span_id)
    return (span.started_ns if span is not None else 0), span_id


def _in_order(shares: tuple[Share, ...] | None, tree: SpanTree) -> tuple[Share, ...] | None:
    """As their spans began."""
    return shares and tuple(sorted(shares, key=lambda share: _begun(tree, share.span_id)))


def _penalties(rewards: Mapping[str, float], executions: Iterable[Execution | None]) -> dict[str, float]:
    return {
        span_id: reward - rewards.get(span_id, 0.0)
        for execution in executions
        if execution is not None
        for span_id, reward in execution.rewards.items()
        if reward != rewards.get(span_id, 0.0)
    }


def _group(rollout: Rollout, measured: Sequence[Rollout], wanted: Wanted) -> GroupFacts:
    rewards = [one.reward for one in measured if one.reward is not None]
    return GroupFacts(
        name=rollout.group + (", agent by agent" if wanted.choices.group_by == "task-agent" else ""),
        rollouts=len(measured),
        reward_mean=float(np.mean(rewards)) if rewards else 0.0,
        reward_std=float(np.std(rewards, ddof=1)) if len(rewards) > 1 else 0.0,
    )
