"""Which call asked for a tool: by the id of the tool call, where instrumentations tell it; else by agent and order.

An id is matched over all calls of the attempt, of every policy and model: a tool that the critic asked for is not the
writer's. Ids need not be unique (some engines count from 0 in every conversation): then the agent decides, then the
order. Where several attempts share a trace, order says nothing of a tool that another may have asked for.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from trainer.spans import Span, SpanTree, shared_traces


class Asking(Protocol):
    """What is asked of a call here."""

    @property
    def span_id(self) -> str:
        """Its span."""

    @property
    def started_ns(self) -> int:
        """Its start."""

    @property
    def tool_call_ids(self) -> Sequence[str]:
        """Ids of the tool calls in its response."""


def tool_requests(tree: SpanTree, calls: Iterable[Asking], selected: Sequence[Asking]) -> dict[str, str]:
    """Tool span id -> span id of the call whose response asked for it; tools that nobody asked for are not there.

    `calls`: all of the attempt. `selected`: those that are trained on, which are taken for the asking ones where no
    call holds the tool's id: the last that began before the tool did under the same agent's span.
    """
    agents: dict[str, str] = {}

    def agent_of(span_id: str) -> str:
        if span_id not in agents:
            agents[span_id] = tree.agent_span(span_id)
        return agents[span_id]

    holders: dict[tuple[str, str | None], list[Asking]] = defaultdict(list)
    in_order = sorted(calls, key=_order)
    for call in in_order:
        for identifier in dict.fromkeys(call.tool_call_ids):
            holders[identifier, None].append(call)
            holders[identifier, agent_of(call.span_id)].append(call)
    by_agent: dict[str, list[Asking]] = defaultdict(list)
    for call in sorted(selected, key=_order):
        by_agent[agent_of(call.span_id)].append(call)
    own = {call.span_id for call in in_order}
    shared = shared_traces(tree.spans.values(), own)
    of_others = {agent_of(span.span_id) for span in tree.spans.values() if span.is_call and span.span_id not in own}

    def may_be_anothers(tool: Span) -> bool:
        return (
            tool.trace_id in shared
            and agent_of(tool.span_id) in {"", *of_others}
            and not tree.leads_to_root(tool.span_id)
        )

    requests: dict[str, str] = {}
    for tool in tree.tools():
        agent = agent_of(tool.span_id)
        holding: Sequence[Asking] = ()
        if tool.tool_call_id:
            holding = holders.get((tool.tool_call_id, agent)) or holders.get((tool.tool_call_id, None), [])
        if holding:
            requests[tool.span_id] = (_last_before(holding, tool.started_ns) or holding[0]).span_id
        elif not may_be_anothers(tool) and (asking := _last_before(by_agent.get(agent, ()), tool.started_ns)):
            requests[tool.span_id] = asking.span_id
    return requests


def _order(call: Asking) -> tuple[int, str]:
    return call.started_ns, call.span_id


def _last_before(calls: Sequence[Asking], at_ns: int) -> Asking | None:
    """The last of the calls, which are in order, that began by then."""
    begun = bisect_right(calls, at_ns, key=lambda call: call.started_ns)
    return calls[begun - 1] if begun else None
