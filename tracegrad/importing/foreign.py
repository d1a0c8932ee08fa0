"""What converters make of a foreign trace: spans and scores.

Invariant: their ids are derived from those that they had. They are the same whenever a trace is imported again, and
never those of a span of our own, also where what is imported is a copy of it: nothing imported is about our spans.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Message = dict[str, Any]
"""A message in the shape of OpenTelemetry's GenAI conventions: `role`, `parts`, of an answer `finish_reason` too."""
_HEX = re.compile("[0-9a-fA-F]+")


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

    `attributes`: as they were, flat. `told_ids`: `trace_id` and `span_id` as the trace had them, where it had any.
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
    """16 bytes, derived from the id that the trace had."""
    return _derived(16, "trace", _spelled(told))


def span_id_of(told: str, trace_told: str) -> bytes:
    """8 bytes, derived from the id that the span had and from its trace's."""
    return _derived(8, "span", _spelled(trace_told), _spelled(told))


def content_id(value: Any) -> str:
    """A name for what has none: equal content has the same one."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _spelled(told: str) -> str:
    """Hex digits in one spelling: some write those of OpenTelemetry's ids in capitals."""
    return told.lower() if len(told) in (16, 32) and _HEX.fullmatch(told) else told


def _derived(length: int, *parts: str) -> bytes:
    return hashlib.sha256("\0".join(("tracegrad.import", *parts)).encode(errors="replace")).digest()[:length]
