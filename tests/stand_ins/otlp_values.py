"""The table of attribute values: what is sent, and the text that the official exporter would store for it.

Values are given as Python has them. A string that is no UTF-8 is a `Text`, a map whose keys are not all different is
`Pairs`. The messages are those of collector.otlp_bytes, which hold any string.
"""

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from collector.otlp_bytes import ARRAY, MAP, of_bytes
from collector.value_text import TOO_DEEP

VALUE = of_bytes(AnyValue)
MAX_INT, MIN_INT = 2**63 - 1, -(2**63)
MAX_DOUBLE = 1.7976931348623157e308


class Text(bytes):
    """A string by its bytes."""


class Pairs(tuple[tuple[str, Any], ...]):
    """A map by its pairs."""


@dataclass(frozen=True)
class Case:
    """`is_slow`: the engine leaves it to Python."""

    name: str
    value: Any
    text: bytes
    is_slow: bool = False


SLOW = True


def any_value(value: Any) -> Any:
    """The AnyValue."""
    message = VALUE()
    match value:
        case Text():
            message.string_value = bytes(value)
        case str():
            message.string_value = value.encode()
        case bool():
            message.bool_value = value
        case int():
            message.int_value = value
        case float():
            message.double_value = value
        case bytes():
            message.bytes_value = value
        case list():
            array = ARRAY()
            for item in value:
                array.values.add().CopyFrom(any_value(item))
            message.array_value = array.SerializeToString()
        case dict() | Pairs():
            message.kvlist_value = key_values(value, MAP()).SerializeToString()
        case _:
            assert value is None
    return message


def key_values(value: Mapping[Any, Any] | Pairs, into: Any) -> Any:
    """`into`, a message with `values`, and the pairs in it."""
    for key, item in value.items() if isinstance(value, Mapping) else value:
        pair = into.values.add(key=key if isinstance(key, bytes) else key.encode())
        pair.value.CopyFrom(any_value(item))
    return into


def set_attributes(attributes: Any, cases: Iterable[Case]) -> None:
    """Each case under its name."""
    for case in cases:
        pair = attributes.add(key=case.name.encode())
        if case.value is not None:
            pair.value.CopyFrom(any_value(case.value))


def json_value(value: Any) -> dict[str, Any]:
    """The value as OTLP/JSON has it."""
    said: dict[str, Any] = {}
    match value:
        case str():
            said["stringValue"] = value
        case bool():
            said["boolValue"] = value
        case int():
            said["intValue"] = str(value)
        case float():
            named = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            said["doubleValue"] = value if math.isfinite(value) else named
        case bytes():
            said["bytesValue"] = base64.b64encode(value).decode()
        case list():
            said["arrayValue"] = {"values": [json_value(item) for item in value]}
        case dict() | Pairs():
            pairs = value.items() if isinstance(value, dict) else value
            said["kvlistValue"] = {"values": [{"key": key, "value": json_value(item)} for key, item in pairs]}
    return said


def _nested(depth: int, innermost: Any) -> Any:
    return [_nested(depth - 1, innermost)] if depth else innermost


CASES = [
    Case("string", "a/b <&> \"q\" 'p' \\ \n\t é 😀", "a/b <&> \"q\" 'p' \\ \n\t é 😀".encode()),
    Case("string.empty", "", b""),
    Case("string.not_utf8", Text(b"a\xff\xc3\xe2\x28\xa1"), b"a\xff\xc3\xe2\x28\xa1"),
    Case("string.zeros", "a\0b", b"a\0b"),
    Case("unset", None, b""),
    Case("true", True, b"true"),
    Case("false", False, b"false"),
    Case("int.zero", 0, b"0"),
    Case("int.max", MAX_INT, b"9223372036854775807"),
    Case("int.min", MIN_INT, b"-9223372036854775808"),
    Case("int.beyond_double", 2**53 + 1, b"9007199254740993"),
    Case("double.zero", 0.0, b"0"),
    Case("double.minus_zero", -0.0, b"-0"),
    Case("double.whole", 1.0, b"1"),
    Case("double.fraction", -0.1, b"-0.1"),
    Case("double.sum", 0.1 + 0.2, b"0.30000000000000004"),
    Case("double.1e15", 1e15, b"1000000000000000"),
    Case("double.1e16", 1e16, b"10000000000000000"),
    Case("double.digits", 123456789012345680000.0, b"123456789012345680000"),
    Case("double.below_1e21", 999999999999999900000.0, b"999999999999999900000"),
    Case("double.1e21", 1e21, b"1e+21"),
    Case("double.-1.5e300", -1.5e300, b"-1.5e+300"),
    Case("double.1e-6", 1e-6, b"0.000001"),
    Case("double.1.25e-5", 1.25e-5, b"0.0000125"),
    Case("double.9.5e-7", 9.5e-7, b"9.5e-7"),
    Case("double.1e-10", 1e-10, b"1e-10"),
    Case("double.least", 5e-324, b"5e-324"),
    Case("double.max", MAX_DOUBLE, b"1.7976931348623157e+308"),
    Case("double.nan", math.nan, b"json: unsupported value: NaN"),
    Case("double.inf", math.inf, b"json: unsupported value: +Inf"),
    Case("double.-inf", -math.inf, b"json: unsupported value: -Inf"),
    Case("bytes", b"\0\xff\xfe", b"AP/+"),
    Case("bytes.padded", b"a", b"YQ=="),
    Case("bytes.empty", b"", b""),
    Case("array", ["stop"], b'["stop"]'),
    Case("array.empty", [], b"[]"),
    Case("array.ints", [1, -1, 0, MAX_INT, MIN_INT], b"[1,-1,0,9223372036854775807,-9223372036854775808]"),
    Case("array.doubles", [0.0, -0.0, 1.0, 0.5, 1e-6, 1e-7, 1e20], b"[0,-0,1,0.5,0.000001,1e-7,100000000000000000000]"),
    Case("array.bools", [True, False], b"[true,false]"),
    Case("array.mixed", [None, True, 7, 1.5, "x", b"ab", ""], b'[null,true,7,1.5,"x","YWI=",""]'),
    Case("array.empty_bytes", [b""], b"[null]"),
    Case(
        "array.escapes",
        ["a/b <&> \"q\" 'p' \\", "\n\t\r\b\f\x7f", "é 😀 \ufffd", "\u2028\u2029"],
        '["a/b <&> \\"q\\" \'p\' \\\\","\\n\\t\\r\\b\\f\x7f","é 😀 \ufffd","\\u2028\\u2029"]'.encode(),
    ),
    Case("array.control", ["\0\x07\x0b\x1b[0m\x1f"], b'["\\u0000\\u0007\\u000b\\u001b[0m\\u001f"]', SLOW),
    Case("array.not_utf8", [Text(b"a\xffb\xf0\x9f\x98")], b'["a\\ufffdb\\ufffd\\ufffd\\ufffd"]', SLOW),
    Case("array.surrogate", [Text(b"\xed\xa0\x80")], b'["\\ufffd\\ufffd\\ufffd"]', SLOW),
    Case("array.1e21", [1e21, -2.5e99], b"[1e+21,-2.5e+99]", SLOW),
    Case("array.nan", [1.0, math.nan], b"", SLOW),
    Case("array.inf", ["x", -math.inf], b"", SLOW),
    Case(
        "array.nested", [[1, "x"], [], [[None]], {"b": [1.0], "a": {}}], b'[[1,"x"],[],[[null]],{"a":{},"b":[1]}]', True
    ),
    Case("map", {"b": 1, "a": "x", "é": None, "z": True}, '{"a":"x","b":1,"z":true,"é":null}'.encode(), SLOW),
    Case("map.empty", {}, b"{}", SLOW),
    Case("map.twice", Pairs((("k", 1), ("a", 0), ("k", [2]))), b'{"a":0,"k":[2]}', SLOW),
    Case("map.deep", {"a": {"b": {"c": [{"d": b"\xff"}]}}}, b'{"a":{"b":{"c":[{"d":"/w=="}]}}}', SLOW),
    Case("map.empty_values", {"a": "", "b": b"", "c": [], "": 0}, b'{"":0,"a":"","b":null,"c":[]}', SLOW),
    Case("map.escapes", {'"<\n\x1f/': "&\u2028"}, b'{"\\"<\\n\\u001f/":"&\\u2028"}', SLOW),
    Case("map.not_utf8", {Text(b"\xff"): Text(b"\xfe")}, b'{"\\ufffd":"\\ufffd"}', SLOW),
    Case(
        "map.numbers", {"i": MIN_INT, "d": 1e21, "w": 2.0}, b'{"d":1e+21,"i":-9223372036854775808,"w":2}', is_slow=True
    ),
    Case("map.nan", {"a": {"b": [math.nan]}, "c": 1}, b"", SLOW),
    Case("deep", _nested(150, {"a": 1}), b"[" * 150 + b'{"a":1}' + b"]" * 150, SLOW),
    Case("too_deep", _nested(250, 1), b"[" * 201 + TOO_DEEP.encode() + b"]" * 201, SLOW),
]
FAST = [case for case in CASES if not case.is_slow]
"""What the engine turns into text by itself."""
