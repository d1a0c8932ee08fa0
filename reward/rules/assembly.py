"""One attempt put together from rows: whose each call and tool was, with which arguments, and for how many tokens.

Invariant: a trace that several attempts share gives each of them what is its own. Calls name their rollout. A tool's
span there belongs to the attempt whose call asked for it, or whose root span stands above it; else to nobody.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import orjson

from reward.answer import UNPARSED_CALL
from reward.rules.arguments import ArgumentSchema
from reward.rules.facts import Attempt, Call, Span, Tool, ToolCall


class SpanRow(NamedTuple):
    """A row of rules_spans.sql, without the attempt."""

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    service: str
    agent: str
    started_ns: int
    ended_ns: int
    status_code: str
    error_type: str
    is_tool: bool
    tool_name: str
    tool_call_id: str
    is_call: bool


class CallRow(NamedTuple):
    """A row of rules_calls.sql, without the attempt."""

    span_id: str
    parent_span_id: str
    is_choice: bool
    policy: str
    model: str
    finish_reason: str
    message: str
    input_tokens: int | None
    output_tokens: int | None
    n_prompt: int
    n_response: int
    output_messages: str
    definitions: int
    same_tools: bool
    extends_span_id: str


class Outlined(Protocol):
    """What is known of an attempt before its spans."""

    @property
    def rollout_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def task_id(self) -> str: ...
    @property
    def trace_id(self) -> str: ...
    @property
    def root_span_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def error_type(self) -> str: ...
    @property
    def started_ns(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...


@dataclass(frozen=True)
class Assembly:
    """Rows about one attempt. `agents`: by the span id of a choice. `arguments`: by trace and span id of a tool."""

    spans: Sequence[SpanRow]
    calls: Sequence[CallRow]
    agents: Mapping[str, str]
    arguments: Mapping[tuple[str, str], str]
    definitions: Mapping[int, Mapping[str, ArgumentSchema]]

    def attempt(self, outline: Outlined) -> Attempt:
        """All that is known of it. Rows that are there twice count once."""
        calls = sorted(self._calls(), key=lambda call: (call.span.started_ns, call.span.span_id))
        return Attempt(
            rollout_id=outline.rollout_id,
            attempt=outline.attempt,
            task_id=outline.task_id,
            trace_id=outline.trace_id,
            root_span_id=outline.root_span_id,
            status=outline.status,
            error_type=outline.error_type,
            started_ns=outline.started_ns,
            ended_ns=outline.ended_ns,
            calls=calls,
            tools=sorted(
                self._tools(calls, outline.root_span_id), key=lambda tool: (tool.span.started_ns, tool.span.span_id)
            ),
            spans=self._spans,
        )

    @cached_property
    def _rows(self) -> Mapping[str, SpanRow]:
        return {row.span_id: row for row in self.spans}

    @cached_property
    def _spans(self) -> Mapping[str, Span]:
        return {span_id: Span(*row[:10]) for span_id, row in self._rows.items()}

    @cached_property
    def _call_rows(self) -> Mapping[str, CallRow]:
        return {row.span_id: row for row in self.calls}

    @cached_property
    def _agent_spans(self) -> Mapping[str, str]:
        """By span id, the nearest agent's span at or above it; empty where there is none, as for spans in a circle."""
        found = {span_id: span_id if row.agent else "" for span_id, row in self._rows.items()}
        settled = {span_id for span_id, agent in found.items() if agent}
        for span_id in self._rows:
            way: list[str] = []
            at = span_id
            while at in found and at not in settled:
                settled.add(at)
                way.append(at)
                at = self._rows[at].parent_span_id
            for passed in way:
                found[passed] = found.get(at, "")
        return found

    def _calls(self) -> Iterator[Call]:
        choices = Counter(row.parent_span_id for row in self._call_rows.values() if row.is_choice)
        for row in self._call_rows.values():
            span = self._spans.get(row.span_id)
            if not row.is_choice or span is None:
                continue
            parent = self._call_rows.get(row.parent_span_id)
            whole = parent if parent is not None and not parent.is_choice else None
            share = choices[row.parent_span_id] if whole is not None else 1
            yield Call(
                span=span,
                agent=self.agents.get(row.span_id, ""),
                policy=row.policy,
                model=row.model,
                finish_reason=row.finish_reason,
                message=row.message,
                input_tokens=_input_tokens(row, whole, share),
                output_tokens=_output_tokens(row, whole, share),
                tool_calls=tuple(self._tool_calls(row)),
                unparsed=any(mark in text for text in _texts(row.output_messages) for mark in UNPARSED_CALL),
            )

    def _tool_calls(self, row: CallRow) -> Iterator[ToolCall]:
        offered: Mapping[str, ArgumentSchema] | None = None
        for part in _parts(row.output_messages):
            if part.get("type") != "tool_call":
                continue
            if offered is None:
                offered = self._offered(row)
            name, call_id = str(part.get("name") or ""), str(part.get("id") or "")
            yield ToolCall(call_id, name, part.get("arguments"), offered.get(name))

    def _offered(self, row: CallRow) -> Mapping[str, ArgumentSchema]:
        """The tools that a call was offered: its own, or those of the call that it extends."""
        passed = set()
        at: CallRow | None = row
        while at is not None and at.span_id not in passed:
            passed.add(at.span_id)
            parent = self._call_rows.get(at.parent_span_id) if at.is_choice else None
            for one in (at, parent):
                if one is not None and one.definitions:
                    return self.definitions.get(one.definitions, {})
            whole = parent if parent is not None and not parent.is_choice else at
            same_tools = at.same_tools or whole.same_tools
            at = self._call_rows.get(at.extends_span_id or whole.extends_span_id) if same_tools else None
        return {}

    def _tools(self, calls: Sequence[Call], root_span_id: str) -> Iterator[Tool]:
        asked = _Asked(calls)
        shared = {row.trace_id for row in self._rows.values() if row.is_call and row.span_id not in self._call_rows}
        for span_id, row in self._rows.items():
            if not row.is_tool:
                continue
            if row.trace_id in shared and row.tool_call_id not in asked and not self._is_under(root_span_id, span_id):
                continue
            span = self._spans[span_id]
            by = asked.last_before(row.tool_call_id, row.started_ns)
            own = self.arguments.get((row.trace_id, span_id))
            agent_span_id = self._agent_spans.get(row.parent_span_id, "")
            named = row.agent or (self._rows[agent_span_id].agent if agent_span_id else "")
            yield Tool(
                span=span,
                name=row.tool_name,
                call_id=row.tool_call_id,
                arguments=_spelled(own) if own is not None else _spelled(by[1].arguments) if by is not None else None,
                agent=named or (by[0].agent if by is not None else ""),
                agent_span_id=agent_span_id,
            )

    def _is_under(self, root_span_id: str, span_id: str) -> bool:
        passed = set()
        while span_id in self._rows and span_id not in passed:
            passed.add(span_id)
            span_id = self._rows[span_id].parent_span_id
            if span_id and span_id == root_span_id:
                return True
        return False


class _Asked:
    """The tool calls of an attempt by their ids, which some engines give again in every conversation."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._by_id: dict[str, list[tuple[Call, ToolCall]]] = defaultdict(list)
        for call in calls:
            for tool_call in call.tool_calls:
                if tool_call.call_id:
                    self._by_id[tool_call.call_id].append((call, tool_call))

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._by_id

    def last_before(self, call_id: str, at_ns: int) -> tuple[Call, ToolCall] | None:
        """The last that began before the tool did; where clocks say that none did, the first."""
        found = self._by_id.get(call_id) if call_id else None
        if not found:
            return None
        return found[max(0, bisect_right(found, at_ns, key=lambda one: one[0].span.started_ns) - 1)]


def _input_tokens(row: CallRow, whole: CallRow | None, share: int) -> float:
    if row.input_tokens is not None:
        return row.input_tokens
    if whole is not None and whole.input_tokens is not None:
        return whole.input_tokens / share
    return row.n_prompt / share


def _output_tokens(row: CallRow, whole: CallRow | None, share: int) -> int:
    if row.output_tokens is not None:
        return row.output_tokens
    if not row.n_response and whole is not None and whole.output_tokens is not None:
        return round(whole.output_tokens / share)
    return row.n_response


def _parts(output_messages: str) -> Iterator[Mapping[str, Any]]:
    """The parts of all messages in `gen_ai.output.messages` (JSON text)."""
    try:
        messages = orjson.loads(output_messages) if output_messages else []
    except orjson.JSONDecodeError:
        return
    for message in messages if isinstance(messages, list) else ():
        parts = message.get("parts") if isinstance(message, dict) else None
        yield from (part for part in (parts if isinstance(parts, list) else ()) if isinstance(part, dict))


def _texts(output_messages: str) -> Iterator[str]:
    for part in _parts(output_messages):
        if part.get("type") == "text" and isinstance(part.get("content"), str):
            yield part["content"]


def _spelled(arguments: Any) -> str:
    """Arguments in one spelling: JSON with sorted keys, or the text that is no JSON."""
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return str(arguments)
    return orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS).decode()
