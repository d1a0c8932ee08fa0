"""OTLP's JSON form, as protobuf. It is protobuf's JSON mapping, but for trace and span ids, which are hex."""

import base64
from typing import Any

import orjson
from google.protobuf.json_format import ParseDict, ParseError

from collector.nested import MalformedError
from collector.signals import Signal

MAX_DEPTH = 200
"""Of objects and lists in one another: no message adds more than two, and protobuf takes 100 of those."""
IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")


def to_protobuf(signal: Signal, body: bytes) -> bytes:
    """The same request as protobuf. Raises MalformedError."""
    request = signal.request()
    try:
        content = orjson.loads(body)
        if not isinstance(content, dict):
            raise ParseError("it is not an object")  # noqa: TRY301 - one place says what was wrong
        ParseDict(_base64_ids(content, MAX_DEPTH), request, ignore_unknown_fields=True)
    except (orjson.JSONDecodeError, ParseError, ValueError) as error:
        raise MalformedError(f"the body is not an OTLP {signal.name} export request in JSON: {error!s:.500}") from error
    plain: bytes = request.SerializeToString()
    return plain


def _base64_ids(value: Any, depth: int) -> Any:
    """`value` with its ids in base64. Raises ValueError where it is nested more than `depth` deep."""
    if depth < 0:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    match value:
        case dict():
            return {
                key: base64.b64encode(bytes.fromhex(item)).decode()
                if key in IDS and isinstance(item, str)
                else _base64_ids(item, depth - 1)
                for key, item in value.items()
            }
        case list():
            return [_base64_ids(item, depth - 1) for item in value]
    return value
