"""The slow path: decode one OTLP request in Python, to judge it and to write the values that the engine cannot as text.

The engine reads attribute values that are scalars or arrays of scalars. A list of lists, a map (`kvlist`), and the few
arrays whose JSON it would write in another way become strings here. The views of metrics take nothing but strings.
"""

import math
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from collector.otlp_bytes import ARRAY, of_bytes
from collector.signals import METRICS, Signal
from collector.value_text import json_string, text
from tracegrad.errors import TracegradError

_STRINGS = frozenset({None, "string_value"})
_SCALARS = frozenset({None, "string_value", "bool_value", "int_value", "double_value", "bytes_value"})
_VALUE = AnyValue.DESCRIPTOR.full_name
_PAIR = KeyValue.DESCRIPTOR.full_name


class MalformedError(TracegradError):
    """The body is not the protobuf message it should be. It will never be accepted."""


def flattened(signal: Signal, body: bytes) -> bytes:
    """The same request with values that the engine reads; `body` itself where it reads all. Raises MalformedError."""
    request, is_nested = _flat(signal, body)
    return bytes(request.SerializeToString()) if is_nested else body


def decoded(signal: Signal, body: bytes) -> tuple[bytes, bool]:
    """The same request written anew, without what OTLP does not have; and whether some values became text.

    Protobuf reads more than the engine does: of a field that is there twice the last, or both merged; numbers that are
    longer than they need be; groups. Raises MalformedError.
    """
    request, is_nested = _flat(signal, body)
    request.DiscardUnknownFields()
    return bytes(request.SerializeToString()), is_nested


def _flat(signal: Signal, body: bytes) -> tuple[Any, bool]:
    request = of_bytes(signal.request)()
    others: list[Any] = []
    try:
        request.ParseFromString(body)
        if signal is METRICS:
            _collect(request, _STRINGS, others)
        else:
            _collect(request, _SCALARS, others)
            others = [value for value in others if not _is_flat(value)]
        for value in others:
            value.string_value = text(value)
    except DecodeError as error:
        raise MalformedError(f"the body is not an OTLP {signal.name} export request: {error}") from error
    return request, bool(others)


def _collect(message: Any, read: frozenset[str | None], others: list[Any]) -> None:
    """Append each value in `message`, of an attribute or a body, that has not one of the kinds in `read`."""
    for field, kind in _ways_to_values(message.DESCRIPTOR):
        if not field.is_repeated:
            if message.HasField(field.name):
                part = getattr(message, field.name)
                if kind != _VALUE:
                    _collect(part, read, others)
                elif part.WhichOneof("value") not in read:
                    others.append(part)
        elif kind == _PAIR:
            values = [pair.value for pair in getattr(message, field.name)]
            others += [value for value in values if value.WhichOneof("value") not in read]
        else:
            for part in getattr(message, field.name):
                _collect(part, read, others)


@cache
def _ways_to_values(message: Descriptor) -> list[tuple[FieldDescriptor, str]]:
    """The fields in which a value may be, and what messages they hold."""
    return [
        (field, field.message_type.full_name)
        for field in message.fields
        if field.message_type is not None
        and (field.message_type.full_name in (_VALUE, _PAIR) or _ways_to_values(field.message_type))
    ]


def _is_flat(value: Any) -> bool:
    if value.WhichOneof("value") != "array_value":
        return False
    items = ARRAY.FromString(value.array_value)
    return items.SerializeToString() == value.array_value and all(_is_plain(item) for item in items.values)


def _is_plain(item: Any) -> bool:
    """Whether the engine writes this item of an array as the exporter does. It has other hex digits in its escapes."""
    match item.WhichOneof("value"):
        case "array_value" | "kvlist_value":
            return False
        case "double_value":
            return math.isfinite(item.double_value) and abs(item.double_value) < 1e21
        case "string_value":
            quoted = json_string(item.string_value)
            return "\\u00" not in quoted and "\\ufffd" not in quoted
    return True
