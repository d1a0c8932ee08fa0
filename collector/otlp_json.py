"""OTLP's JSON form, as protobuf. It is protobuf's JSON mapping, but for trace and span ids, which are hex."""

import base64
import json
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
        content = _content(body)
        if not isinstance(content, dict):
            raise ParseError("it is not an object")  # noqa: TRY301 - one place says what was wrong
        _set_base64_ids(content, MAX_DEPTH)
        ParseDict(content, request, ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError) as error:
        raise MalformedError(f"the body is not an OTLP {signal.name} export request in JSON: {error!s:.500}") from error
    plain: bytes = request.SerializeToString()
    return plain


def _content(body: bytes) -> Any:
    """What the JSON says. Half a character (text that was cut in an emoji, as JavaScript does) becomes U+FFFD."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        text = json.dumps(json.loads(body.decode(errors="replace")), ensure_ascii=False)
        return orjson.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _set_base64_ids(value: Any, depth: int) -> None:
    """Put ids into base64, in place. Raises ValueError where `value` is nested more than `depth` deep."""
    if depth < 0:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    match value:
        case dict():
            for key, item in value.items():
                if key in IDS and isinstance(item, str):
                    value[key] = base64.b64encode(bytes.fromhex(item)).decode()
                elif isinstance(item, dict | list):
                    _set_base64_ids(item, depth - 1)
        case list():
            for item in value:
                if isinstance(item, dict | list):
                    _set_base64_ids(item, depth - 1)
