"""Rewards that nobody has to give: a rule finds something in the spans of an attempt and rewards it by its weight.

A rule of one's own is a function that is given an `Attempt` and yields a `Finding` (or a plain tuple of the same) for
each thing that it judges:

    def wordy(attempt: Attempt) -> Iterator[Finding]:
        for call in attempt.calls:
            if call.output_tokens > 500:
                yield Finding(call.span.span_id, 1.0, f"{call.output_tokens} tokens")
"""

from reward.rules.facts import Attempt, Call, Span, Tool, ToolCall
from reward.rules.finding import Finding

__all__ = ["Attempt", "Call", "Finding", "Span", "Tool", "ToolCall"]
