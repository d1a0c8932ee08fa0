"""What converters make of a foreign trace: spans and scores, whose ids are the same whenever it is imported again."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Message = dict[str, Any]
"""A message in the shape of OpenTelemetry's GenAI conventions: `role`, `parts`, of an answer `finish_reason` too."""
SOURCES = ("otlp", "openinference", "langfuse")


@dataclass(frozen=True)
class ForeignCall:
    """What is known of a model call; empty and None where nothing is."""

    input_messages: Sequence[Message] = ()
    output_messages: Sequence[Message] = ()
    tools: Sequence[Json] = ()
    operation: str = "chat"
    provider: str | None = None
    model: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    finish_reasons: Sequence[str] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class ForeignTool:
    """What is known of a tool's run."""

    name: str
    call_id: str | None = None


@dataclass(frozen=True)
class ForeignSpan:
    """One span. `parent_span_id` is empty for the root of a trace; `error` is None where it went well.

    `attributes`: as they were, flat. `told_ids`: the ids that the trace had, where they are no ids of OpenTelemetry.
    """

    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    error: str | None = None
    error_type: str | None = None
    call: ForeignCall | None = None
    tool: ForeignTool | None = None
    service: str = ""
    scope: str = ""
    told_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ForeignScore:
    """What somebody gave a span, or with an empty `span_id` the whole trace. `score` None: only a label was given."""

    trace_id: bytes
    span_id: bytes
    name: str
    score: float | None
    label: str | None
    explanation: str | None
    at_ns: int


Found = ForeignSpan | ForeignScore


class NotThisFormatError(ValueError):
    """The value cannot be of the format that it was said to be; the message says why."""


def trace_id_of(told: str) -> bytes:
    """16 bytes: the id itself where it is 32 hex digits, else derived from it."""
    return _hex(told, 16) or _derived(16, "trace", told)


def span_id_of(told: str, trace_told: str) -> bytes:
    """8 bytes: the id itself where it is 16 hex digits, else derived from it and its trace's."""
    return _hex(told, 8) or _derived(8, "span", trace_told, told)


def told_ids(trace: str, span: str) -> dict[str, str]:
    """Those of the two that had to be replaced."""
    told = {}
    if _hex(trace, 16) is None:
        told["trace_id"] = trace
    if _hex(span, 8) is None:
        told["span_id"] = span
    return told


def content_id(value: Any) -> str:
    """A name for what has none: equal content has the same one."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _hex(told: str, length: int) -> bytes | None:
    if len(told) != 2 * length or not all(digit in "0123456789abcdefABCDEF" for digit in told):
        return None
    found = bytes.fromhex(told)
    return found if any(found) else None


def _derived(length: int, *parts: str) -> bytes:
    return hashlib.sha256("\0".join(("tracegrad.import", *parts)).encode(errors="replace")).digest()[:length]
