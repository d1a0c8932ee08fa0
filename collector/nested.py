"""The slow path: decode one OTLP request in Python, to judge it and to write nested values as JSON text.

The engine reads attribute values that are scalars or arrays of scalars. A list of lists or a map (`kvlist`) becomes a
string here, the text the OpenTelemetry Collector's ClickHouse exporter would store: JSON, keys sorted, bytes as base64.
"""

import base64
import math
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from collector.signals import Signal
from tracegrad.errors import TracegradError

_NESTED = ("array_value", "kvlist_value")
_INT64 = 1 << 63


class MalformedError(TracegradError):
    """The body is not the protobuf message it should be. It will never be accepted."""


def flattened(signal: Signal, body: bytes) -> bytes:
    """The same request without nested values; `body` itself where there are none. Raises MalformedError."""
    request = signal.request()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise MalformedError(f"the body is not an OTLP {signal.name} export request: {error}") from error
    nested = [value for value in _values(request) if _is_nested(value)]
    if not nested:
        return body
    for value in nested:
        value.string_value = orjson.dumps(_plain(value), option=orjson.OPT_SORT_KEYS).decode()
    plain: bytes = request.SerializeToString()
    return plain


def _values(request: Message) -> Iterator[AnyValue]:
    """Every attribute value, and every body."""
    match request:
        case ExportTraceServiceRequest():
            for resource in request.resource_spans:
                yield from _of(resource.resource.attributes)
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        yield from _of(span.attributes)
                        for part in (*span.events, *span.links):
                            yield from _of(part.attributes)
        case ExportLogsServiceRequest():
            for logs in request.resource_logs:
                yield from _of(logs.resource.attributes)
                for log_scope in logs.scope_logs:
                    yield from _of(log_scope.scope.attributes)
                    for record in log_scope.log_records:
                        yield from _of(record.attributes)
                        yield record.body


def _of(attributes: Iterable[KeyValue]) -> Iterator[AnyValue]:
    return (attribute.value for attribute in attributes)


def _is_nested(value: AnyValue) -> bool:
    kind = value.WhichOneof("value")
    return kind == "kvlist_value" or (
        kind == "array_value" and any(item.WhichOneof("value") in _NESTED for item in value.array_value.values)
    )


def _plain(value: AnyValue) -> Any:
    match value.WhichOneof("value"):
        case "kvlist_value":
            return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
        case "array_value":
            return [_plain(item) for item in value.array_value.values]
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "double_value":
            number = value.double_value
            return int(number) if math.isfinite(number) and number.is_integer() and abs(number) < _INT64 else number
        case None:
            return None
        case kind:
            return getattr(value, kind)
