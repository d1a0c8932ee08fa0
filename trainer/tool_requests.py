"""Which call asked for a tool: by the id of the tool call, where instrumentations tell it; else by agent and order.

An id is matched over all calls of the attempt, of every policy and model: a tool that the critic asked for is not the
writer's. Ids need not be unique (some engines count from 0 in every conversation): then the agent decides, then the
order.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from trainer.spans import SpanTree


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
    holders: dict[str, list[Asking]] = defaultdict(list)
    for call in calls:
        for identifier in dict.fromkeys(call.tool_call_ids):
            holders[identifier].append(call)
    agents: dict[str, str] = {}

    def agent_of(span_id: str) -> str:
        if span_id not in agents:
            agents[span_id] = tree.agent_span(span_id)
        return agents[span_id]

    requests: dict[str, str] = {}
    for tool in tree.tools():
        agent = agent_of(tool.span_id)
        asking: Asking | None
        if tool.tool_call_id and (holding := holders.get(tool.tool_call_id)):
            beside = [call for call in holding if agent_of(call.span_id) == agent] or holding
            asking = _last_before(beside, tool.started_ns) or min(beside, key=_order)
        else:
            asking = _last_before([call for call in selected if agent_of(call.span_id) == agent], tool.started_ns)
        if asking is not None:
            requests[tool.span_id] = asking.span_id
    return requests


def _order(call: Asking) -> tuple[int, str]:
    return call.started_ns, call.span_id


def _last_before(calls: Iterable[Asking], at_ns: int) -> Asking | None:
    return max((call for call in calls if call.started_ns <= at_ns), key=_order, default=None)
