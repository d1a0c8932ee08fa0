"""`tracegrad doctor --rollout`: one rollout, drawn and explained for a person."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegrad.cli.doctor_tree import short, tree_lines
from tracegrad.cli.table import printable, table

if TYPE_CHECKING:
    from trainer.explain import CallFacts, Explanation


def as_object(found: "Explanation") -> dict[str, Any]:
    """For programs."""
    rollout, numbers = found.rollout, {facts.call.span_id: facts.number for facts in found.calls}
    return {
        "rollout_id": rollout.rollout_id,
        "attempt": rollout.attempt,
        "attempts": found.attempts,
        "task_id": rollout.task_id,
        "status": rollout.status,
        "split": rollout.split,
        "error": found.error,
        "action": found.action or None,
        "reward": rollout.reward,
        "scheme": found.scheme,
        "gamma": found.gamma,
        "estimator": found.estimator,
        "group": vars(found.group),
        "spans": [
            {
                "span_id": span.span_id,
                "parent_span_id": span.parent_span_id,
                "name": span.name,
                "agent": span.agent,
                "tool": span.tool_name if span.is_tool else "",
                "call": numbers.get(span.span_id),
                "error": span.error_type or span.error_message if span.failed else "",
            }
            for span in sorted(found.tree.spans.values(), key=lambda span: (span.started_ns, span.span_id))
        ],
        "calls": [_call_object(facts) for facts in found.calls],
        "rewards": [vars(reward) for reward in found.rewards],
        "penalties": found.penalties,
    }


def _call_object(facts: "CallFacts") -> dict[str, Any]:
    call, verdict = facts.call, facts.verdict
    return {
        "number": facts.number,
        "span_id": call.span_id,
        "agent": call.agent,
        "policy": call.policy,
        "policy_version": call.policy_version,
        "prompt_tokens": len(call.prompt_token_ids),
        "response_tokens": len(call.response_token_ids),
        "finish_reason": call.finish_reason,
        "why_inexact": facts.why_inexact or None,
        "why_no_transition": facts.why_none or None,
        "errors": facts.errors,
        "tools": [vars(match) for match in facts.tools],
        "credit": verdict.credit if verdict else None,
        "shares": None if facts.shares is None else [vars(share) for share in facts.shares],
        "advantage": verdict.advantage if verdict else None,
        "used": verdict.used if verdict else False,
        "drop_reason": verdict.drop_reason or None if verdict else None,
        "step_id": verdict.step_id or None if verdict else None,
        "follows": vars(facts.follows) if facts.follows else None,
    }


def lines(found: "Explanation") -> Iterator[str]:
    """The explanation as text."""
    yield from _head(found)
    yield ""
    yield from tree_lines(found)
    if found.calls:
        yield ""
        yield from _calls(found)
    yield ""
    yield from _rewards(found)
    told = [line for facts in found.calls for line in _of_call(found, facts)]
    if told:
        yield ""
        yield f"Credit ({found.scheme}, gamma {found.gamma:g}), advantage ({found.estimator}) and verdict"
        yield from told


def _head(found: "Explanation") -> Iterator[str]:
    rollout = found.rollout
    which = f"attempt {rollout.attempt}" + (f" of {len(found.attempts)}" if len(found.attempts) > 1 else "")
    task = f", task {rollout.task_id}" if rollout.task_id else ", no task"
    held_out = ", held out (eval)" if rollout.split == "eval" else ""
    yield printable(f"Rollout {rollout.rollout_id}, {which}: {rollout.status}{task}{held_out}")
    if found.error is not None:
        done = f": what a job does about it is to {found.action} it" if found.action else ""
        yield f"Failed ({found.error}{f', {short(rollout.error_type)}' if rollout.error_type else ''}){done}"
    group = found.group
    if group.rollouts > 1:
        yield (
            f"Measured among {group.rollouts} rollouts of {group.name}: rewards {group.reward_mean:.4g} on average, "
            f"deviation {group.reward_std:.4g}"
        )
    else:
        yield "Measured against nobody: no other rollout of its task is in its batch"


def _calls(found: "Explanation") -> list[str]:
    header = ("CALL", "SPAN", "AGENT", "POLICY", "PROMPT", "RESPONSE", "FINISH", "EXACT", "BEGINS", "ERRORS")
    rows = []
    for facts in found.calls:
        call = facts.call
        rows.append(
            (
                str(facts.number),
                call.span_id,
                call.agent,
                call.policy + ("" if call.policy_version is None else f"@{call.policy_version}"),
                str(len(call.prompt_token_ids)),
                str(len(call.response_token_ids)),
                call.finish_reason,
                f"no: {facts.why_inexact}" if facts.why_inexact else "yes",
                f"{facts.follows.how} {facts.follows.call}" if facts.follows else "",
                ", ".join(facts.errors),
            )
        )
    return table(header, rows)


def _rewards(found: "Explanation") -> Iterator[str]:
    if not found.rewards and not found.penalties:
        yield "No rewards: give some with `tracegrad reward`"
        return
    yield f"Rewards, their sum is {found.rollout.reward or 0.0:g}"
    known = all(facts.shares is not None for facts in found.calls)
    for reward in found.rewards:
        weight = "" if reward.weight in (None, 1.0) else f" times {reward.weight:g}"
        if reward.weight is None:
            reaches = ": it does not count in this reward set"
        elif reward.reaches:
            reaches = f": reaches {_numbered(reward.reaches)}"
        elif reward.score == 0 or not known:
            reaches = ""
        else:
            reaches = ": reaches no call"
        yield f"  {short(reward.name)} {reward.score:+g}{weight} on {_name(found, reward.span_id)}{reaches}"
    for span_id, penalty in found.penalties.items():
        yield f"  penalty {penalty:+g} on {_name(found, span_id)}"


def _of_call(found: "Explanation", facts: "CallFacts") -> Iterator[str]:
    verdict = facts.verdict
    if verdict is None:
        yield f"  call {facts.number}: no transition: {facts.why_none}"
        return
    from trainer.reasons import in_words

    sums = ""
    if facts.shares is None:
        sums = " (a scheme of your own: not a sum over spans)"
    elif facts.shares:
        sums = " = " + " ".join(
            f"{share.amount:+.4f}"
            + ("" if abs(share.amount - share.reward) < 1e-12 else f" (of {share.reward:g})")
            + f" {_name(found, share.span_id)}"
            for share in facts.shares
        )
    yield f"  call {facts.number}: credit {verdict.credit:+.4f}{sums}"
    advantage = "none" if verdict.advantage is None else f"{verdict.advantage:+.4f}"
    step = f"step {verdict.step_id}" if verdict.step_id else "a step"
    did = "trained on it" if verdict.step_id else "would train on it"
    did_not = "did not train on it" if verdict.step_id else "would not train on it"
    why = f": {verdict.drop_reason} ({in_words(verdict.drop_reason)})" if verdict.drop_reason else ""
    yield f"    advantage {advantage}; {step} {did if verdict.used else did_not}{why}"
    if facts.follows is not None and facts.follows.why:
        yield f"    no merging with call {facts.follows.call}, {facts.follows.how}: {facts.follows.why}"


def _name(found: "Explanation", span_id: str) -> str:
    for facts in found.calls:
        if facts.call.span_id == span_id:
            return f"call {facts.number}"
    span = found.tree.spans.get(span_id)
    if span is None:
        return "the rollout, whose root span has not arrived" if not span_id else f"span {span_id}, which is not there"
    return f"tool {short(span.tool_name)}" if span.is_tool and span.tool_name else short(span.name)


def _numbered(numbers: Sequence[int]) -> str:
    ordered = sorted(numbers)
    return ("call " if len(ordered) == 1 else "calls ") + ", ".join(str(number) for number in ordered)


def explained(url: str, rollout_id: str, attempt: int | None, job: Path | None) -> "Explanation":
    """What the store at `url` knows of it, judged as the job of a `train.toml` would, or with defaults."""
    from trainer import config as train_config
    from trainer.batch_choices import Choices
    from trainer.explain import explain, gate_of_job
    from trainer.listing import GATE, Wanted
    from trainer.since import Since
    from trainer.store import Store

    chosen = train_config.load(job) if job is not None else None
    wanted = Wanted(
        since=Since(0, untrained_only=False),
        choices=Choices() if chosen is None else Choices.of_job(chosen),
        gate=GATE if chosen is None else gate_of_job(chosen),
        rollout_id=rollout_id,
        policy=chosen.data.policy if chosen is not None else None,
    )
    store = Store(url)
    try:
        return explain(store, rollout_id, attempt, wanted, chosen.engine.model if chosen is not None else None)
    finally:
        store.close()
