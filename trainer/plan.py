"""The plan of a step: which rollouts it consumes, and what each of their transitions is worth."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracegrad.errors import NothingToTrainError
from trainer.backlog import Backlog, Sought
from trainer.batch_choices import Choices
from trainer.config import DataConfig, TrainConfig
from trainer.gate import Gate
from trainer.records import SampleRecord
from trainer.rollout import Rollout
from trainer.samples import Samples, samples_of
from trainer.since import LATEST_NS, Since
from trainer.store import Store

NO_CALLS = "no_calls"
"""Why a rollout is consumed without a sample: none of its calls became a transition."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that one step consumes. `uncalled`: its rollouts without a transition."""

    rollouts: Sequence[Rollout]
    samples: Samples
    uncalled: Sequence[Rollout]


class SettlingError(NothingToTrainError):
    """There will be enough to train on as soon as rollouts have settled. Taken at once, groups would be torn apart."""


def make_plan(config: TrainConfig, store: Store, gate: Gate, since: Since, *, hurried: bool) -> Plan:
    """What the next step would consume. Raises NothingToTrainError when there is too little.

    `hurried`: take what is ready; otherwise rollouts that settle are waited for, and the error is a SettlingError.
    """
    data = config.data
    quiet_before_ns = time.time_ns() - round(data.settle_s * 1e9) if data.settle_s else LATEST_NS
    choices = Choices.of_job(config)
    names = store.reward_names() if data.reward_set else []
    sought = Sought(
        data.policy,
        since,
        quiet_before_ns,
        penalized=choices.penalized_statuses,
        counted=frozenset(choices.reward_set.taken(names)) if data.reward_set else None,
    )
    backlog = store.backlog(sought)
    if backlog.settling and not hurried and backlog.ready + backlog.settling >= data.min_rollouts:
        raise SettlingError(f"{backlog.settling} rollouts of policy {data.policy!r} settle")
    if backlog.ready < data.min_rollouts or not backlog.ready:
        raise NothingToTrainError(_why_nothing(data, backlog) + _without_rewards(data, names, sought))
    ready = store.untrained(sought)
    chosen = whole_groups(ready, data.max_rollouts)
    rollouts = store.filled(chosen)
    if since.untrained_only:
        gate = replace(gate, trained=store.trained_spans(data.policy, rollouts))
    samples = samples_of(rollouts, data.policy, choices, gate)
    if backlog.lost:  # they stay where they are: whoever is heard of again may still be given a reward
        samples = replace(samples, failures={**samples.failures, ("lost", "drop"): backlog.lost})
    if data.agents and not samples.all:
        raise NothingToTrainError(_nobody_chosen(data, rollouts))
    sampled = {sample.rollout for sample in samples.all}
    return Plan(rollouts, samples, [rollout for rollout in rollouts if rollout.key not in sampled])


def whole_groups(rollouts: Sequence[Rollout], limit: int | None) -> list[Rollout]:
    """At most `limit` rollouts, group by group in order of their first: a group is split only if it alone is larger."""
    if limit is None:
        return list(rollouts)
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    taken: list[Rollout] = []
    for group in groups.values():
        if taken and len(taken) + len(group) > limit:
            break
        taken.extend(group[:limit])
    return taken


def _why_nothing(data: DataConfig, backlog: Backlog) -> str:
    wanted = f" of the {data.min_rollouts} that data.min_rollouts asks for" if data.min_rollouts > 1 else ""
    return (
        f"nothing new to train policy {data.policy!r} on: of {backlog.total} rollouts in the store, "
        f"{backlog.ready} are ready{wanted}, {backlog.settling} settling, {backlog.running} running, "
        f"{backlog.lost} lost, {backlog.unrewarded} without a reward, "
        f"{backlog.uncalled + backlog.alongside} without a call of this policy "
        f"and {backlog.trained} already trained: run `tracegrad rollout`, then `tracegrad reward`"
    )


def _nobody_chosen(data: DataConfig, rollouts: Sequence[Rollout]) -> str:
    agents = sorted({call.agent for rollout in rollouts for call in rollout.calls if call.policy == data.policy})
    known = ", ".join(repr(agent) for agent in agents) or "none"
    return (
        f"none of {len(rollouts)} rollouts has a call of policy {data.policy!r} by an agent that data.agents = "
        f"{list(data.agents)} names; agents with calls of it are {known}: correct data.agents"
    )


def _without_rewards(data: DataConfig, names: Sequence[str], sought: Sought) -> str:
    if sought.counted is None or sought.counted:
        return ""
    known = ", ".join(names) or "none"
    return f"; data.reward_set = {data.reward_set!r} takes no evaluation of the store, which has {known}"


def plan_metrics(plan: Plan, gate: Gate) -> dict[str, float]:
    """Rewards over rollouts, how many calls and tokens are trained on, drops by reason, staleness in versions."""
    rewards = [rollout.reward for rollout in plan.rollouts if rollout.reward is not None]
    used = [sample.transition.call for sample in plan.samples.used]
    ages = [age for age in (gate.staleness(call.policy_version) for call in used) if age is not None]
    dropped = Counter(sample.drop_reason for sample in plan.samples.all if not sample.used)
    dropped[NO_CALLS] = len(plan.uncalled)
    return {
        "reward_mean": float(np.mean(rewards)),
        "reward_std": float(np.std(rewards)),
        "n_rollouts": len(plan.rollouts),
        "n_groups": len({rollout.group for rollout in plan.rollouts}),
        "n_transitions": len(plan.samples.all),
        "n_trained": len(used),
        "tokens": sum(len(call.response_token_ids) for call in used),
        "staleness_mean": float(np.mean(ages)) if ages else 0.0,
        "staleness_max": max(ages, default=0),
        **{f"dropped_{reason}": count for reason, count in sorted(dropped.items()) if count},
        **{f"failed_{error}_{action}": count for (error, action), count in sorted(plan.samples.failures.items())},
    }


def sample_records(plan: Plan) -> tuple[SampleRecord, ...]:
    """One record per transition, and one per rollout that has none."""
    of_samples = [
        SampleRecord(
            span_id=sample.transition.call.span_id,
            trace_id=sample.transition.call.trace_id,
            rollout_id=sample.transition.call.rollout_id,
            attempt=sample.transition.call.attempt,
            agent=sample.transition.call.agent,
            reward=sample.credit,
            advantage=sample.advantage,
            n_tokens=len(sample.transition.call.response_token_ids),
            used=sample.used,
            drop_reason=sample.drop_reason,
        )
        for sample in plan.samples.all
    ]
    of_uncalled = [
        SampleRecord(
            span_id=rollout.own_span_id,
            trace_id=rollout.trace_id,
            rollout_id=rollout.rollout_id,
            attempt=rollout.attempt,
            agent="",
            reward=rollout.reward or 0.0,
            advantage=0.0,
            n_tokens=0,
            used=False,
            drop_reason=NO_CALLS,
        )
        for rollout in plan.uncalled
    ]
    return (*of_samples, *of_uncalled)
