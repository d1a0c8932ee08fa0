"""Spans of a tree, made by hand."""

from typing import Any

from trainer.spans import Span


def span(span_id: str, parent: str = "", start: int = 0, **changes: Any) -> Span:
    """A span from `start` to the nanosecond after, under `parent`."""
    values: dict[str, Any] = {
        "trace_id": "t",
        "span_id": span_id,
        "parent_span_id": parent,
        "name": span_id,
        "agent": "",
        "is_tool": False,
        "tool_name": "",
        "tool_call_id": "",
        "started_ns": start,
        "ended_ns": start + 1,
        "status_code": "Unset",
        "error_type": "",
        "http_status": 0,
    }
    return Span(**values | changes)
