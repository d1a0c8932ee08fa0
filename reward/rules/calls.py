"""Rules about what a model answered. Each judges the call."""

from collections.abc import Iterator

from reward.rules.arguments import as_object
from reward.rules.facts import Attempt, ToolCall
from reward.rules.finding import Finding
from reward.rules.settings import AgentSettings, ToolSettings
from tracegrad.context_overflow import is_context_overflow
from tracegrad.finish_reasons import CONTEXT_FULL, TRUNCATED

LONGEST_QUOTE = 200


def invalid_tool_arguments(attempt: Attempt, _: ToolSettings) -> Iterator[Finding]:
    """1 for each tool call in a response whose arguments are no JSON object or do not fit the tool's schema."""
    for call in attempt.calls:
        for tool_call in call.tool_calls:
            if (wrong := _wrong(tool_call)) is not None:
                yield Finding(call.span.span_id, 1.0, f"arguments of {tool_call.name}: {wrong}")


def malformed_tool_call(attempt: Attempt, _: ToolSettings) -> Iterator[Finding]:
    """1 for each tool call that cannot be carried out: arguments that are no JSON object, or markup left as text."""
    for call in attempt.calls:
        for tool_call in call.tool_calls:
            if as_object(tool_call.arguments) is None:
                yield Finding(call.span.span_id, 1.0, f"arguments of {tool_call.name}: {_wrong(tool_call)}")
        if call.unparsed:
            yield Finding(call.span.span_id, 1.0, "a tool call came out as text")


def answer_truncated(attempt: Attempt, _: AgentSettings) -> Iterator[Finding]:
    """1 for each answer that was cut off at the longest it might be."""
    for call in attempt.calls:
        if call.finish_reason in TRUNCATED:
            words = f"the answer was cut off after {call.output_tokens} tokens"
            yield Finding(call.span.span_id, 1.0, words)


def context_overflow(attempt: Attempt, _: AgentSettings) -> Iterator[Finding]:
    """1 for each call that was refused because prompt and answer do not fit into the model's context.

    And for each answer that ended with the context, where the provider says so.
    """
    for call in attempt.calls:
        if call.finish_reason == CONTEXT_FULL:
            yield Finding(call.span.span_id, 1.0, "the context ended before the answer")
        if call.span.failed and is_context_overflow(call.message):
            yield Finding(call.span.span_id, 1.0, f"refused: {call.message[:LONGEST_QUOTE]}")


def _wrong(tool_call: ToolCall) -> str | None:
    arguments = as_object(tool_call.arguments)
    if arguments is None:
        return f"no JSON object: {str(tool_call.arguments)[:LONGEST_QUOTE]!r}"
    return tool_call.schema.misfit(arguments) if tool_call.schema is not None else None
