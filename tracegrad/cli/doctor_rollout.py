"""`tracegrad doctor --rollout`: one rollout, drawn and explained for a person."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegrad.cli.table import table

if TYPE_CHECKING:
    from trainer.explain import CallFacts, Explanation
    from trainer.spans import Span

LONGEST_NAME = 60
LONGEST_MESSAGE = 120


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
    yield from _Tree(found).lines()
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
    yield f"Rollout {rollout.rollout_id}, {which}: {rollout.status}{task}{held_out}"
    if found.error is not None:
        done = f": what a job does about it is to {found.action} it" if found.action else ""
        yield f"Failed ({found.error}{f', {rollout.error_type}' if rollout.error_type else ''}){done}"
    group = found.group
    if group.rollouts > 1:
        yield (
            f"Measured among {group.rollouts} rollouts of {group.name}: rewards {group.reward_mean:.4g} on average, "
            f"deviation {group.reward_std:.4g}"
        )
    else:
        yield "Measured against nobody: no other rollout of its task is in its batch"


class _Tree:
    """The spans that matter, each under the nearest one that does: agents, tools, calls, failures, rewards."""

    def __init__(self, found: "Explanation") -> None:
        self._found = found
        self._tree = found.tree
        self._numbers = {facts.call.span_id: facts for facts in found.calls}
        self._asked = {match.span_id: (facts, match) for facts in found.calls for match in facts.tools}
        given = {reward.span_id for reward in found.rewards}
        shown = {
            span.span_id
            for span in self._tree.spans.values()
            if span.agent or span.is_tool or span.failed or span.span_id in given or span.span_id in self._numbers
        }
        if self._tree.root_span_id in self._tree.spans:
            shown.add(self._tree.root_span_id)
        self._left_out = len(self._tree.spans) - len(shown)
        self._under: dict[str, list[str]] = defaultdict(list)
        for span_id in sorted(shown, key=lambda one: (self._tree.spans[one].started_ns, one)):
            above = next((one for one in self._tree.ancestors(span_id) if one in shown), "")
            self._under[above].append(span_id)

    def lines(self) -> Iterator[str]:
        yield "Spans" + (f" (without {self._left_out} that are no agent's, tool's or call's)" if self._left_out else "")
        if not self._under:
            yield "none has arrived"
        waiting = [(span_id, "", "") for span_id in reversed(self._under[""])]
        while waiting:
            span_id, before, below = waiting.pop()
            yield before + self._told(span_id)
            children = self._under.get(span_id, [])
            last = len(children) - 1
            waiting += [
                (child, below + ("└─ " if index == last else "├─ "), below + ("   " if index == last else "│  "))
                for index, child in reversed(list(enumerate(children)))
            ]

    def _told(self, span_id: str) -> str:
        span = self._tree.spans[span_id]
        name = span.name if len(span.name) <= LONGEST_NAME else span.name[: LONGEST_NAME - 1] + "…"
        parts = [name]
        if (facts := self._numbers.get(span_id)) is not None:
            parts = [f"call {facts.number}: {name}", *_told_of(facts)]
        elif span.is_tool:
            parts = [f"tool {span.tool_name or name}"]
            if span_id in self._asked:
                asking, match = self._asked[span_id]
                parts.append(f"asked for by call {asking.number} ({match.how})")
            else:
                parts.append("asked for by no call")
        elif span.agent:
            parts = [f"agent {span.agent}"]
        parts += [f"{reward.name} {reward.score:+g}" for reward in self._found.rewards if reward.span_id == span_id]
        if span.failed:
            parts.append(f"FAILED {_failure(span)}".rstrip())
        return ", ".join(parts)


def _told_of(facts: "CallFacts") -> Iterator[str]:
    call = facts.call
    if call.policy:
        yield "version " + ("unknown" if call.policy_version is None else str(call.policy_version))
    yield f"{len(call.prompt_token_ids)} -> {len(call.response_token_ids)} tokens"
    if call.finish_reason:
        yield call.finish_reason
    yield from facts.errors


def _failure(span: "Span") -> str:
    """One line about a span that failed; the type is often the message's beginning, or all of it."""
    message = (span.error_message.strip().splitlines() or [""])[0][:LONGEST_MESSAGE]
    return message if message.startswith(span.error_type) else f"{span.error_type} {message}".strip()


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
    yield f"Rewards, {found.rollout.reward or 0.0:g} in all"
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
        yield f"  {reward.name} {reward.score:+g}{weight} on {_name(found, reward.span_id)}{reaches}"
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
    return f"tool {span.tool_name}" if span.is_tool and span.tool_name else span.name


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
