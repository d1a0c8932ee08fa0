"""The text of an attribute value, to the byte what the OpenTelemetry Collector's ClickHouse exporter stores.

That is `AsString` of Go's `pcommon.Value`: a scalar as it is, bytes as base64, an array or a map as JSON. It has no
spaces, `<` and `&` as they are, the keys of a map sorted, and of a key that is there twice the last value. Only what is
nested more than MAX_DEPTH deep is not written: a string says so in its place.
"""

import base64
import json
import math
import re
from decimal import Decimal
from typing import Any

from collector.otlp_bytes import ARRAY, MAP

MAX_DEPTH = 200
"""Of arrays and maps in one another: each level is copied once more, so that a hostile request must have an end."""
TOO_DEEP = f'"tracegrad: nested more than {MAX_DEPTH} deep"'
_ESCAPED = re.compile("[\u2028\u2029\udc80-\udcff]")


class _NoJsonError(ValueError):
    """The value has no JSON text: there is a number in it that is not finite."""


def text(value: Any) -> bytes:
    """`value` is an AnyValue of otlp_bytes. Raises protobuf's DecodeError."""
    match value.WhichOneof("value"):
        case "string_value":
            return bytes(value.string_value)
        case "bytes_value":
            return base64.b64encode(value.bytes_value)
        case "double_value" if not math.isfinite(value.double_value):
            return f"json: unsupported value: {number_text(value.double_value)}".encode()
        case "bool_value" | "int_value" | "double_value" | "array_value" | "kvlist_value":
            try:
                return json_text(value).encode()
            except _NoJsonError:
                return b""
    return b""


def json_text(value: Any, depth: int = MAX_DEPTH) -> str:
    """As Go's encoding/json has it; no bytes at all are a nil slice there, and that is null."""
    if depth < 0:
        return TOO_DEEP
    written = "null"
    match value.WhichOneof("value"):
        case "string_value":
            written = json_string(value.string_value)
        case "bool_value":
            written = "true" if value.bool_value else "false"
        case "int_value":
            written = str(value.int_value)
        case "double_value":
            if not math.isfinite(value.double_value):
                raise _NoJsonError
            written = number_text(value.double_value)
        case "bytes_value" if value.bytes_value:
            written = f'"{base64.b64encode(value.bytes_value).decode()}"'
        case "array_value":
            items = ARRAY.FromString(value.array_value).values
            written = "[" + ",".join(json_text(item, depth - 1) for item in items) + "]"
        case "kvlist_value":
            last = {pair.key: pair.value for pair in MAP.FromString(value.kvlist_value).values}
            pairs = (f"{json_string(key)}:{json_text(last[key], depth - 1)}" for key in sorted(last))
            written = "{" + ",".join(pairs) + "}"
    return written


def json_string(value: bytes) -> str:
    """As Go writes it: each byte that is no UTF-8 is an escaped U+FFFD, and the two line separators are escaped too."""
    quoted = json.dumps(value.decode(errors="surrogateescape"), ensure_ascii=False)
    return _ESCAPED.sub(_escape, quoted)


def _escape(found: re.Match[str]) -> str:
    return "\\ufffd" if found[0] >= "\udc80" else f"\\u{ord(found[0]):04x}"


def number_text(number: float) -> str:
    """As Go writes it: the shortest digits that tell it, with an exponent below 1e-6 and from 1e21 on."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
    shortest = repr(number)
    if number == 0 or 1e-6 <= abs(number) < 1e21:
        plain = format(Decimal(shortest), "f") if "e" in shortest else shortest
        return plain.removesuffix(".0")
    return shortest.replace("e-0", "e-")
