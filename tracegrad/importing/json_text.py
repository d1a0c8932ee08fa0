"""JSON inside of JSON: traces hold messages and arguments as texts."""

import json
from collections.abc import Mapping
from typing import Any

import orjson


def parsed(value: Any) -> Any:
    """What a text holds where it is a JSON object or array; everything else as it is."""
    if not isinstance(value, str) or value[:64].lstrip()[:1] not in ("{", "["):
        return value
    try:
        return orjson.loads(value)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return value


def json_text(value: Any) -> str:
    """Compact JSON text, also of what the faster writer refuses: half a surrogate pair, integers beyond 64 bits."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, separators=(",", ":"), default=str)


def text(value: Any) -> str | None:
    """The value if it is a text with something in it."""
    return value if isinstance(value, str) and value else None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def whole(value: Any) -> int | None:
    """A count: an integer, also one written as text or as a float."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    # Python refuses to read numbers of thousands of digits.
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 100 else None
