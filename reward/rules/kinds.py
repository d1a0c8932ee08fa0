"""The rules there are. A new one is a function over the facts of one attempt, its settings, and a line here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reward.rules import calls, spending, tools
from reward.rules.facts import Attempt
from reward.rules.finding import Finding
from reward.rules.settings import AgentSettings, CostSettings, LatencySettings, RuleSettings, ToolSettings


@dataclass(frozen=True)
class Kind:
    """`version`: to be raised whenever the function finds other things in the same spans."""

    settings: type[RuleSettings]
    find: Callable[[Attempt, Any], Iterable[Finding]]
    version: int = 1


KINDS: Mapping[str, Kind] = {
    "tool_failed": Kind(ToolSettings, tools.tool_failed),
    "tool_retried": Kind(ToolSettings, tools.tool_retried),
    "invalid_tool_arguments": Kind(ToolSettings, calls.invalid_tool_arguments),
    "malformed_tool_call": Kind(ToolSettings, calls.malformed_tool_call, version=2),
    "answer_truncated": Kind(AgentSettings, calls.answer_truncated),
    "context_overflow": Kind(AgentSettings, calls.context_overflow),
    "latency": Kind(LatencySettings, spending.latency),
    "cost": Kind(CostSettings, spending.cost),
}
