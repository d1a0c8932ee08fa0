"""The slow path: decode one OTLP request in Python, to judge it and to write the values that the engine cannot as text.

The engine reads attribute values that are scalars or arrays of scalars. A list of lists, a map (`kvlist`), and the few
arrays whose JSON it would write in another way become strings here. The views of metrics take nothing but strings.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from collector.otlp_bytes import ARRAY, of_bytes
from collector.signals import METRICS, Signal
from collector.value_text import json_string, text
from tracegrad.errors import TracegradError

_VALUE = AnyValue.DESCRIPTOR.full_name


class MalformedError(TracegradError):
    """The body is not the protobuf message it should be. It will never be accepted."""


def flattened(signal: Signal, body: bytes) -> bytes:
    """The same request with values that the engine reads; `body` itself where it reads all. Raises MalformedError."""
    is_read = _is_string if signal is METRICS else _is_flat
    request = of_bytes(signal.request)()
    try:
        request.ParseFromString(body)
        others = [value for value in _values(request) if not is_read(value)]
        for value in others:
            value.string_value = text(value)
    except DecodeError as error:
        raise MalformedError(f"the body is not an OTLP {signal.name} export request: {error}") from error
    return bytes(request.SerializeToString()) if others else body


def _values(message: Any) -> Iterator[Any]:
    """Every attribute value, and every body: each AnyValue that is not inside another."""
    if message.DESCRIPTOR.full_name == _VALUE:
        yield message
        return
    for name, is_repeated in _ways_to_values(message.DESCRIPTOR):
        if is_repeated:
            for part in getattr(message, name):
                yield from _values(part)
        elif message.HasField(name):
            yield from _values(getattr(message, name))


@cache
def _ways_to_values(message: Descriptor) -> list[tuple[str, bool]]:
    """The fields in which an AnyValue may be, and whether each is repeated."""
    return [
        (field.name, field.is_repeated)
        for field in message.fields
        if field.message_type is not None
        and (field.message_type.full_name == _VALUE or _ways_to_values(field.message_type))
    ]


def _is_string(value: Any) -> bool:
    return value.WhichOneof("value") in (None, "string_value")


def _is_flat(value: Any) -> bool:
    match value.WhichOneof("value"):
        case "kvlist_value":
            return False
        case "array_value":
            return all(_is_plain(item) for item in ARRAY.FromString(value.array_value).values)
    return True


def _is_plain(item: Any) -> bool:
    """Whether the engine writes this item of an array as the exporter does. It writes other hex digits in escapes."""
    match item.WhichOneof("value"):
        case "array_value" | "kvlist_value":
            return False
        case "double_value":
            return math.isfinite(item.double_value) and abs(item.double_value) < 1e21
        case "string_value":
            quoted = json_string(item.string_value)
            return "\\u00" not in quoted and "\\ufffd" not in quoted
    return True
