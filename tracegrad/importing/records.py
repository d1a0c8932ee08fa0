"""Foreign spans as OTLP records of ours.

Invariants, for every span: it has a rollout id and names its source; it has no policy, no token ids, and nothing else
under `tracegrad.` that it did not get here. A model call says that it is not trainable, because it has no token ids.
The root of a trace says how the trace went, and that it is held out: not even a task's baseline counts it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad import names
from tracegrad.importing.foreign import ForeignCall, ForeignScore, ForeignSpan
from tracegrad.importing.json_text import json_text
from tracegrad.otlp import SpanContext, Value, attributes, span

SERVICE = "tracegrad.import"
"""The scope and the service of what was imported."""
NO_TOKEN_IDS = "no_token_ids"  # noqa: S105 - a reason
HELD_OUT = "eval"
OWN = "tracegrad."


@dataclass(frozen=True)
class Naming:
    """What all that is imported is told to be. `rollout_id` None: every trace is a rollout of its own."""

    source: str
    rollout_id: str | None = None
    task_id: str | None = None

    def rollout_of(self, trace_id: bytes) -> str:
        """The rollout that a trace belongs to."""
        return self.rollout_id or trace_id.hex()


@dataclass(frozen=True)
class Extent:
    """From when to when a trace's spans are, and whether one of them is its root."""

    start_ns: int
    end_ns: int
    has_root: bool

    def with_span(self, one: ForeignSpan) -> "Extent":
        """The same with one more span."""
        is_root = self.has_root or not one.parent_span_id
        return Extent(min(self.start_ns, one.start_ns), max(self.end_ns, one.end_ns), is_root)


def span_record(one: ForeignSpan, naming: Naming) -> Span:
    """The span, with its call or tool in OpenTelemetry's names."""
    values: dict[str, Value] = {name: _value(told) for name, told in one.attributes.items() if told is not None}
    values |= _of_call(one.call) if one.call is not None else {}
    if one.tool is not None:
        values.setdefault("gen_ai.operation.name", "execute_tool")
        values.setdefault("gen_ai.tool.name", one.tool.name)
        values.setdefault("gen_ai.tool.call.id", one.tool.call_id)
    if one.error is not None:
        values.setdefault(names.ERROR_TYPE, _utf8(one.error_type or "_OTHER"))
    values |= _identity(one.trace_id, naming)
    values |= {names.IMPORT_SERVICE: _utf8(one.service) or None, names.IMPORT_SCOPE: _utf8(one.scope) or None}
    values |= {f"{names.IMPORT_PREFIX}{key}": _utf8(told) for key, told in one.told_ids.items()}
    if not one.parent_span_id:
        values |= _how_it_went(failed=one.error is not None)
    return span(
        _utf8(one.name),
        SpanContext(one.trace_id, one.span_id),
        parent_span_id=one.parent_span_id,
        kind=Span.SPAN_KIND_CLIENT if one.call is not None else Span.SPAN_KIND_INTERNAL,
        start_ns=one.start_ns,
        end_ns=max(one.start_ns, one.end_ns),
        values=values,
        error=None if one.error is None else _utf8(one.error),
    )


def root_record(trace_id: bytes, extent: Extent, naming: Naming) -> Span:
    """A root for a trace that came without: what was above its spans was not exported."""
    return span(
        names.ROOT_SPAN_NAME,
        SpanContext(trace_id, hashlib.sha256(b"tracegrad.import root" + trace_id).digest()[:8]),
        start_ns=extent.start_ns,
        end_ns=extent.end_ns,
        values=_identity(trace_id, naming) | _how_it_went(failed=False),
    )


def score_record(one: ForeignScore, naming: Naming) -> LogRecord:
    """The score as an evaluation of the span it judges, or of the rollout, at the time it was given."""
    return LogRecord(
        time_unix_nano=one.at_ns,
        observed_time_unix_nano=one.at_ns,
        event_name=names.EVALUATION_EVENT,
        trace_id=one.trace_id,
        span_id=one.span_id,
        attributes=attributes(
            {
                names.EVALUATION_NAME: _utf8(one.name),
                names.EVALUATION_SCORE: one.score,
                names.EVALUATION_LABEL: None if one.label is None else _utf8(one.label),
                names.EVALUATION_EXPLANATION: None if one.explanation is None else _utf8(one.explanation),
                names.ROLLOUT_ID: naming.rollout_of(one.trace_id),
                names.IMPORT_SOURCE: naming.source,
            }
        ),
    )


def own_attribute(one: ForeignSpan) -> str | None:
    """The name of an attribute that only our own processes write; None in what is foreign."""
    return next((name for name in one.attributes if name.startswith(OWN)), None)


def _identity(trace_id: bytes, naming: Naming) -> dict[str, Value]:
    return {
        names.ROLLOUT_ID: naming.rollout_of(trace_id),
        names.TASK_ID: naming.task_id,
        names.IMPORT_SOURCE: naming.source,
    }


def _how_it_went(*, failed: bool) -> dict[str, Value]:
    return {names.ROLLOUT_STATUS: "failed" if failed else "succeeded", names.ROLLOUT_SPLIT: HELD_OUT}


def _of_call(call: ForeignCall) -> Mapping[str, Value]:
    told: dict[str, Value] = {
        names.OPERATION_NAME: call.operation,
        names.PROVIDER_NAME: call.provider,
        names.REQUEST_MODEL: call.model,
        names.RESPONSE_MODEL: call.response_model,
        names.RESPONSE_ID: call.response_id,
        names.FINISH_REASONS: tuple(call.finish_reasons) or None,
        names.INPUT_TOKENS: call.input_tokens,
        names.OUTPUT_TOKENS: call.output_tokens,
        names.INPUT_MESSAGES: json_text(call.input_messages) if call.input_messages else None,
        names.OUTPUT_MESSAGES: json_text(call.output_messages) if call.output_messages else None,
        names.TOOL_DEFINITIONS: json_text(call.tools) if call.tools else None,
    }
    known = {name: _value(value) for name, value in told.items() if value is not None}
    return known | {names.TRAINABLE: False, names.UNTRAINABLE_REASON: NO_TOKEN_IDS}


def _value(told: Any) -> Value:
    """What an attribute of ours may hold; all else as JSON text."""
    if isinstance(told, str):
        return _utf8(told)
    if isinstance(told, bool | float):
        return told
    if isinstance(told, int):
        return told if -(2**63) <= told < 2**63 else str(told)
    if isinstance(told, list | tuple) and all(isinstance(one, str) for one in told):
        return [_utf8(one) for one in told]
    return json_text(told)


def _utf8(told: str) -> str:
    """Half a surrogate pair, which JSON can hold and UTF-8 cannot, becomes `?`."""
    return told if told.isascii() else told.encode(errors="replace").decode()
