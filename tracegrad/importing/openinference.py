"""Single spans in JSON, as OpenTelemetry's SDKs print them and as Phoenix exports them, and attributes alone.

Known are the JavaScript SDK's (`spanContext`, times in two numbers), the Python SDK's `to_json`, Phoenix's (`context`,
`span_kind`; also as records of a data frame, `context.span_id`, `attributes.llm.model_name`), and bare objects of
attributes, which have no ids and no time: their ids come from their content.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tracegrad.importing.call_attributes import Event, call_of, tool_of
from tracegrad.importing.foreign import (
    ForeignSpan,
    Json,
    NotThisFormatError,
    content_id,
    span_id_of,
    trace_id_of,
)
from tracegrad.importing.json_text import mapping, text
from tracegrad.importing.numbered import flat
from tracegrad.importing.times import time_ns

_CONVENTIONS = ("gen_ai.", "llm.", "openinference.", "ai.", "traceloop.", "mlflow.", "langfuse.", "input.", "output.")


def is_span(value: Any) -> bool:
    """Whether this is a span, or attributes of one."""
    told = mapping(value)
    return (
        isinstance(told.get("spanContext", told.get("context")), dict)
        or ("name" in told and bool(_ids(told)[1]))
        or _is_attributes(told)
    )


def openinference_spans(value: Any, file_ns: int) -> Iterator[ForeignSpan]:
    """The span that this is, or those of a page of Phoenix's. Raises NotThisFormatError.

    `file_ns`: when what has no time was.
    """
    if isinstance(told := mapping(value).get("data", mapping(value).get("spans")), list):
        for one in told:
            yield from openinference_spans(one, file_ns)
        return
    if not is_span(value):
        raise NotThisFormatError("no span: it has neither a span context nor attributes of a convention that is known")
    yield _span({"attributes": value} if _is_attributes(value) else value, file_ns)


def _span(span: Json, file_ns: int) -> ForeignSpan:
    attributes = _attributes(span)
    trace, own = _ids(span)
    is_named = bool(trace and own)
    if not is_named:
        trace = own = content_id(span)
    parent = _parent(span)
    name = text(span.get("name")) or _name(attributes)
    start = _time(span, "startTime", "start_time")
    end = _time(span, "endTime", "end_time")
    start = start if start is not None else end if end is not None else file_ns
    events = list(_events(span))
    failed, message = _status(span)
    exception = next((told.get("exception.type") for event, told in events if event == "exception"), None)
    return ForeignSpan(
        trace_id=trace_id_of(trace),
        span_id=span_id_of(own, trace),
        parent_span_id=span_id_of(parent, trace) if parent else b"",
        name=name,
        start_ns=start,
        end_ns=start if end is None else max(start, end),
        attributes=attributes,
        error=message if failed else None,
        error_type=text(exception) if failed else None,
        call=call_of(attributes, events),
        tool=tool_of(attributes, name),
        service=text(mapping(mapping(span.get("resource")).get("attributes")).get("service.name")) or "",
        scope=text(mapping(span.get("instrumentationScope", span.get("instrumentationLibrary"))).get("name")) or "",
        told_ids={"trace_id": trace, "span_id": own} if is_named else {},
    )


def _is_attributes(told: Mapping[str, Any]) -> bool:
    return "attributes" not in told and any(
        name.startswith(_CONVENTIONS) and not isinstance(value, dict) for name, value in told.items()
    )


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    told = dict(flat(mapping(span.get("attributes"))))
    told |= {name.removeprefix("attributes."): one for name, one in span.items() if name.startswith("attributes.")}
    told = dict(flat(told))
    if isinstance(kind := span.get("span_kind"), str) and kind.upper() != "UNKNOWN":
        told.setdefault("openinference.span.kind", kind.upper())
    return told


def _ids(span: Mapping[str, Any]) -> tuple[str, str]:
    context = mapping(span.get("spanContext", span.get("context")))
    trace = context.get(
        "traceId", context.get("trace_id", span.get("context.trace_id", span.get("trace_id", span.get("traceId"))))
    )
    own = context.get(
        "spanId", context.get("span_id", span.get("context.span_id", span.get("span_id", span.get("spanId"))))
    )
    return _id(trace), _id(own)


def _parent(span: Mapping[str, Any]) -> str:
    context = mapping(span.get("parentSpanContext"))
    return _id(context.get("spanId", span.get("parentSpanId", span.get("parent_id", span.get("parent_span_id")))))


def _id(told: Any) -> str:
    return told.removeprefix("0x") if isinstance(told, str) else ""


def _time(span: Mapping[str, Any], *names: str) -> int | None:
    return next((ns for name in names if (ns := time_ns(span.get(name))) is not None), None)


def _name(attributes: Mapping[str, Any]) -> str:
    operation = text(attributes.get("gen_ai.operation.name")) or text(attributes.get("ai.operationId"))
    told = operation or text(attributes.get("openinference.span.kind")) or "span"
    subject = text(attributes.get("gen_ai.request.model")) or text(attributes.get("gen_ai.tool.name"))
    return f"{told} {subject}" if subject else told


def _status(span: Mapping[str, Any]) -> tuple[bool, str]:
    status = span.get("status", span.get("status_code"))
    told = mapping(status)
    code = told.get("code", told.get("status_code")) if told else status
    message = text(told.get("message")) or text(told.get("description")) or text(span.get("status_message")) or ""
    return code == 2 or str(code).rpartition(".")[2] == "ERROR", message


def _events(span: Mapping[str, Any]) -> Iterator[Event]:
    events = span.get("events")
    for event in events if isinstance(events, list) else []:
        told = mapping(event)
        yield text(told.get("name")) or "", dict(flat(mapping(told.get("attributes"))))
