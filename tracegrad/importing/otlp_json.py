"""Spans of OTLP in JSON: export requests, as collectors write them to files. Ids are in hex, or as protobuf's own JSON
has them, in base64; names are in camelCase or, again by protobuf, in snake_case."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tracegrad.importing.call_attributes import call_of, tool_of
from tracegrad.importing.foreign import ForeignSpan, NotThisFormatError, span_id_of, trace_id_of
from tracegrad.importing.json_text import json_text, mapping, text, whole
from tracegrad.importing.times import LATEST_NS

_CAPITAL = re.compile("([A-Z])")
_OTHERS = ("resourceLogs", "resource_logs", "resourceMetrics", "resource_metrics")
_ERROR = (2, "STATUS_CODE_ERROR")


def is_otlp(value: Any) -> bool:
    """Whether this is an export request of any signal."""
    return any(key in mapping(value) for key in ("resourceSpans", "resource_spans", *_OTHERS))


def otlp_spans(value: Any) -> Iterator[ForeignSpan]:
    """The spans of one export request; of logs and metrics none. Raises NotThisFormatError."""
    if not is_otlp(value):
        raise NotThisFormatError("no OTLP export: it has no resourceSpans")
    for r, of_resource in enumerate(_list(value, "resourceSpans", "")):
        resource = _attributes(_field(of_resource, "resource") or {}, "attributes")
        for c, of_scope in enumerate(_list(of_resource, "scopeSpans", f"resourceSpans[{r}]")):
            scope = text(mapping(_field(of_scope, "scope")).get("name")) or ""
            where = f"resourceSpans[{r}].scopeSpans[{c}]"
            for s, span in enumerate(_list(of_scope, "spans", where)):
                yield _span(span, f"{where}.spans[{s}]", text(resource.get("service.name")) or "", scope)


def _span(span: Mapping[str, Any], where: str, service: str, scope: str) -> ForeignSpan:
    trace, own = _id(span, "traceId", 16, where), _id(span, "spanId", 8, where)
    if not trace or not own:
        raise NotThisFormatError(f"{where} has no {'spanId' if trace else 'traceId'}")
    parent = _id(span, "parentSpanId", 8, where)
    start, end = (_time(span, name, where) for name in ("startTimeUnixNano", "endTimeUnixNano"))
    if start is None:
        raise NotThisFormatError(f"{where} has no startTimeUnixNano")
    attributes = _attributes(span, "attributes")
    status = mapping(_field(span, "status"))
    name = text(span.get("name")) or ""
    events = [
        (text(mapping(event).get("name")) or "", _attributes(event, "attributes"))
        for event in _list(span, "events", where)
    ]
    exception = next((told.get("exception.type") for event, told in events if event == "exception"), None)
    failed = status.get("code") in _ERROR
    return ForeignSpan(
        trace_id=trace_id_of(trace),
        span_id=span_id_of(own, trace),
        parent_span_id=span_id_of(parent, trace) if parent else b"",
        name=name,
        start_ns=start,
        end_ns=start if end is None else end,
        attributes=attributes,
        error=(text(status.get("message")) or "") if failed else None,
        error_type=text(exception) if failed else None,
        call=call_of(attributes, events),
        tool=tool_of(attributes, name),
        service=service,
        scope=scope,
        told_ids={"trace_id": trace, "span_id": own},
    )


def _time(span: Mapping[str, Any], name: str, where: str) -> int | None:
    told = whole(_field(span, name))
    if told is not None and not 0 <= told <= LATEST_NS:
        raise NotThisFormatError(f"{where}.{name} is {told}, no time from 1970 to 2262")
    return told


def _field(value: Any, name: str) -> Any:
    value = mapping(value)
    return value[name] if name in value else value.get(_CAPITAL.sub(lambda found: "_" + found[1].lower(), name))


def _list(value: Any, name: str, where: str) -> list[Any]:
    found = _field(value, name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise NotThisFormatError(f"{where + '.' if where else ''}{name} is no list of objects")
    return found


def _id(span: Mapping[str, Any], name: str, length: int, where: str) -> str:
    """As hex where it can be; empty for none, which zeros are too."""
    told = _field(span, name)
    if told is None or told == "":
        return ""
    if not isinstance(told, str):
        raise NotThisFormatError(f"{where}.{name} is no text")
    if len(told) == 4 * ((length + 2) // 3):
        try:
            told = base64.b64decode(told, validate=True).hex()
        except binascii.Error:
            return told
    return "" if told == "00" * length else told.lower() if len(told) == 2 * length else told


def _attributes(value: Any, name: str) -> dict[str, Any]:
    return {
        pair["key"]: _value(pair.get("value")) for pair in _list(value, name, "") if isinstance(pair.get("key"), str)
    }


def _value(told: Any) -> Any:
    """What an AnyValue holds. Objects stay objects: whoever stores them makes texts of them."""
    for key, value in mapping(told).items():
        match key.replace("_", "").lower():
            case "intvalue":
                number = (
                    whole(value) if not (isinstance(value, str) and value.startswith("-")) else -(whole(value[1:]) or 0)
                )
                return value if number is None else number
            case "arrayvalue":
                return [_value(one) for one in _list(value, "values", "")]
            case "kvlistvalue":
                return _attributes(value, "values")
            case "stringvalue" | "boolvalue" | "doublevalue" | "bytesvalue":
                return value
    return json_text(told) if told else None
