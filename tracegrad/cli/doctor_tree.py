"""The spans of a rollout, drawn as a tree for `tracegrad doctor --rollout`."""

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracegrad.cli.table import printable

if TYPE_CHECKING:
    from trainer.explain import CallFacts, Explanation
    from trainer.spans import Span

LONGEST_NAME = 60
LONGEST_MESSAGE = 120


def tree_lines(found: "Explanation") -> Iterator[str]:
    """One line for each span that matters, under the nearest one that does."""
    return _Tree(found).lines()


def short(name: str) -> str:
    """A name as it can be shown: names come from anywhere."""
    return printable(name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…")


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
            # Where parents go in a circle, those on it stand beside each other.
            above = (one for one in self._tree.ancestors(span_id) if span_id not in self._tree.ancestors(one))
            self._under[next((one for one in above if one in shown), "")].append(span_id)

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
        name = short(span.name)
        parts = [name]
        if (facts := self._numbers.get(span_id)) is not None:
            parts = [f"call {facts.number}: {name}", *_told_of(facts)]
        elif span.is_tool:
            parts = [f"tool {short(span.tool_name) or name}"]
            if span_id in self._asked:
                asking, match = self._asked[span_id]
                parts.append(f"asked for by call {asking.number} ({match.how})")
            else:
                parts.append("asked for by no call")
        elif span.agent:
            parts = [f"agent {short(span.agent)}"]
        parts += [
            f"{short(reward.name)} {reward.score:+g}" for reward in self._found.rewards if reward.span_id == span_id
        ]
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
    return printable(message if message.startswith(span.error_type) else f"{span.error_type} {message}".strip())
