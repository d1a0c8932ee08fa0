"""Rules about how tools went. Each judges the tool's own span."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from reward.rules.facts import Attempt, Tool
from reward.rules.finding import Finding
from reward.rules.settings import ToolSettings


def tool_failed(attempt: Attempt, _: ToolSettings) -> Iterator[Finding]:
    """1 for each run of a tool that ended with an error."""
    for tool in attempt.tools:
        if tool.span.failed:
            with_what = f" with {tool.span.error_type}" if tool.span.error_type else ""
            yield Finding(tool.span.span_id, 1.0, f"tool {tool.name} failed{with_what}")


def tool_retried(attempt: Attempt, _: ToolSettings) -> Iterator[Finding]:
    """1 for each run of a tool that an agent repeats, with the very arguments with which it has just failed.

    What ran before is the last run that had ended when this one began. Without arguments nobody knows what is repeated.
    """
    alike: dict[tuple[str, str, str], list[Tool]] = defaultdict(list)
    for tool in attempt.tools:
        if tool.arguments is not None:
            alike[tool.agent_span_id, tool.name, tool.arguments].append(tool)
    for (_span, name, _arguments), runs in alike.items():
        ended = sorted(runs, key=lambda tool: (tool.span.ended_ns, tool.span.span_id))
        ends = [tool.span.ended_ns for tool in ended]
        for tool in runs:
            last = bisect_right(ends, tool.span.started_ns) - 1
            if last >= 0 and ended[last] is tool:  # what took no time is not its own predecessor
                last -= 1
            if last >= 0 and ended[last].span.failed:
                yield Finding(
                    tool.span.span_id, 1.0, f"tool {name} was run again with the arguments with which it had failed"
                )
