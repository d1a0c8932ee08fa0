"""Files are read value by value; what is wrong is named with its place; ids are the same every time."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracegrad.errors import InputError
from tracegrad.importing import json_values, reading, sending
from tracegrad.importing.foreign import ForeignSpan, Found, span_id_of
from tracegrad.importing.records import Naming, span_record
from tracegrad.importing.times import time_ns

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file: `write(text)`, or `write(value)` as JSON."""

    def make(content: Any, name: str = "traces.json") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return make


def otlp(**span: Any) -> dict[str, Any]:
    told = {"traceId": TRACE, "spanId": SPAN, "name": "chat", "startTimeUnixNano": "5", "endTimeUnixNano": "9", **span}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [told]}]}]}


def found_in(path: Path, chosen: str = "auto") -> list[Found]:
    return list(reading.recognised(path, chosen).read())


def spans_in(path: Path, chosen: str = "auto") -> list[ForeignSpan]:
    return [one for one in found_in(path, chosen) if isinstance(one, ForeignSpan)]


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_values_are_found_whatever_is_between_them(piece: int, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "PIECE", piece)
    values = [{"a": "é\n𝄞 ]},"}, {"b": [1, 2.5e3, None, True, {"c": "\\u00e9\\\\"}]}, {}]
    lines = "\n".join(json.dumps(value) for value in values)
    for text in (
        lines,
        lines + "\n\n",
        "\ufeff" + lines,
        json.dumps(values),
        json.dumps(values, indent=3),
        json.dumps(values, indent=3, ensure_ascii=False),
        "\n".join(json.dumps(value, indent=2) for value in values),
    ):
        assert [value for _, value in json_values.json_values(write(text))] == values, text


def test_places_are_lines(write: Write) -> None:
    path = write('[\n{"a": 1},\n\n{"b":\n2}]')
    assert [(place.line, place.number) for place, _ in json_values.json_values(path)] == [(2, 1), (4, 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("nonsense", "line 1 (value 1): no JSON"),
        ('{"resourceSpans": []}\n{"resourceSpans"', "line 2 (value 2): no JSON"),
        ('[{"resourceSpans": []},\n {"resourceSp', "line 2 (value 2): no JSON"),
        ('[{"resourceSpans": []}', "the array breaks off"),
        ('[{"resourceSpans": []}] 1', "something follows the end of the array"),
        ('{"resourceSpans": []}', "no spans (as otlp)"),
        ('{"resourceLogs": []}', "no spans (as otlp)"),
        ('{"some": "thing"}', "neither OTLP JSON nor spans"),
        ("[1, 2]", "neither OTLP JSON nor spans"),
    ],
)
def test_what_is_no_file_of_traces_is_refused_in_one_line(text: str, said: str, write: Write) -> None:
    path = write(text)
    with pytest.raises(InputError) as error:
        sending.read([reading.recognised(path, "auto")])
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        reading.recognised(tmp_path / "none.json", "auto")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"traceId": ""}, "resourceSpans[0].scopeSpans[0].spans[0] has no traceId"),
        ({"spanId": None}, "has no spanId"),
        ({"startTimeUnixNano": None}, "has no startTimeUnixNano"),
        ({"attributes": {"a": 1}}, "attributes is no list of objects"),
        ({"events": [1]}, "events is no list of objects"),
        ({"traceId": 5}, "traceId is no text"),
    ],
)
def test_a_bad_span_is_named(change: dict[str, Any], said: str, write: Write) -> None:
    path = write(json.dumps(otlp()) + "\n" + json.dumps(otlp(**change)))
    with pytest.raises(InputError) as error:
        found_in(path)
    assert said in str(error.value)
    assert "line 2 (value 2)" in str(error.value)


def test_the_wrong_format_is_told_with_what_it_looks_like(write: Write) -> None:
    with pytest.raises(InputError, match=r"no trace of Langfuse.*looks like otlp"):
        found_in(write(otlp()), "langfuse")


def test_ids_in_hex_and_in_base64_are_the_same(write: Write) -> None:
    told = {"traceId": TRACE.upper(), "spanId": SPAN, "parentSpanId": PARENT}
    coded = {name: base64.b64encode(bytes.fromhex(one)).decode() for name, one in told.items()}
    (a,), (b,) = spans_in(write(otlp(**told))), spans_in(write(otlp(**coded)))
    assert a == b
    assert a.told_ids == {"trace_id": TRACE, "span_id": SPAN}


def test_ids_are_never_those_that_a_span_of_our_own_could_have(write: Write) -> None:
    (a,) = spans_in(write(otlp(traceId=TRACE, spanId=SPAN, parentSpanId=PARENT)))
    (again,) = spans_in(write(otlp(traceId=TRACE.upper(), spanId=SPAN.upper(), parentSpanId=PARENT)))
    (below,) = spans_in(write(otlp(traceId=TRACE, spanId="00f067aa0ba902b9", parentSpanId=SPAN)))
    (elsewhere,) = spans_in(write(otlp(traceId="1" + TRACE[1:], spanId=SPAN, parentSpanId=PARENT)))
    assert not {TRACE, SPAN, PARENT} & {one.hex() for one in (a.trace_id, a.span_id, a.parent_span_id)}
    assert (again.trace_id, again.span_id) == (a.trace_id, a.span_id)
    assert below.parent_span_id == a.span_id
    assert elsewhere.span_id != a.span_id
    record = {one.key: one.value.string_value for one in span_record(a, Naming("otlp")).attributes}
    assert (record["tracegrad.import.trace_id"], record["tracegrad.import.span_id"]) == (TRACE, SPAN)
    assert record["tracegrad.rollout.id"] == a.trace_id.hex()


def test_names_in_snake_case_are_known(write: Write) -> None:
    span = {"trace_id": TRACE, "span_id": SPAN, "name": "chat", "start_time_unix_nano": 5, "end_time_unix_nano": 9}
    span["attributes"] = [{"key": "n", "value": {"int_value": "-3"}}]
    (found,) = spans_in(write({"resource_spans": [{"scope_spans": [{"spans": [span]}]}]}))
    assert (found.start_ns, found.attributes) == (5, {"n": -3})


def test_attributes_keep_their_types(write: Write) -> None:
    values = [
        {"key": "s", "value": {"stringValue": "x"}},
        {"key": "i", "value": {"intValue": "9007199254740993"}},
        {"key": "d", "value": {"doubleValue": 0.5}},
        {"key": "b", "value": {"boolValue": False}},
        {"key": "l", "value": {"arrayValue": {"values": [{"stringValue": "a"}]}}},
        {"key": "o", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": 1}}]}}},
    ]
    (found,) = spans_in(write(otlp(attributes=values)))
    assert found.attributes == {"s": "x", "i": 9007199254740993, "d": 0.5, "b": False, "l": ["a"], "o": {"k": 1}}
    told = {one.key: one.value for one in span_record(found, Naming("otlp")).attributes}
    assert told["i"].int_value == 9007199254740993
    assert told["o"].string_value == '{"k":1}'
    assert [one.string_value for one in told["l"].array_value.values] == ["a"]


def test_other_ids_are_derived_and_remembered(write: Write) -> None:
    (a,), (b,) = (spans_in(write(otlp(traceId="order-7", spanId=one, parentSpanId="top"))) for one in ("x", "y"))
    assert a.trace_id == b.trace_id
    assert a.parent_span_id == b.parent_span_id
    assert a.span_id != b.span_id
    assert a.told_ids == {"trace_id": "order-7", "span_id": "x"}
    assert (len(a.trace_id), len(a.span_id)) == (16, 8)


def test_our_own_spans_are_refused(write: Write) -> None:
    path = write(otlp(attributes=[{"key": "tracegrad.policy.name", "value": {"stringValue": "policy"}}]))
    with pytest.raises(InputError, match=f"span {SPAN} is our own, as it has tracegrad.policy.name"):
        found_in(path)


def test_spans_of_the_python_sdk_and_of_phoenix(write: Write) -> None:
    sdk = {
        "name": "ChatCompletion",
        "context": {"trace_id": f"0x{TRACE}", "span_id": f"0x{SPAN}", "trace_state": "[]"},
        "parent_id": f"0x{PARENT}",
        "start_time": "2026-02-03T04:05:06.123456Z",
        "end_time": "2026-02-03T04:05:07Z",
        "status": {"status_code": "ERROR", "description": "boom"},
        "attributes": {"openinference.span.kind": "LLM", "llm.model_name": "m", "input.value": "Hi"},
        "events": [{"name": "exception", "attributes": {"exception.type": "ValueError"}}],
        "resource": {"attributes": {"service.name": "shop"}},
    }
    (a,) = spans_in(write(sdk))
    record = {
        "name": "ChatCompletion",
        "span_kind": "LLM",
        "context.trace_id": TRACE,
        "context.span_id": SPAN,
        "parent_id": PARENT,
        "start_time": 1770091506123,
        "end_time": 1770091507000,
        "status_code": "ERROR",
        "status_message": "boom",
        "attributes.llm.model_name": "m",
        "attributes.llm.input_messages": [{"message.role": "user", "message.content": "Hi"}],
    }
    (b,) = spans_in(write([record]))
    for one in (a, b):
        assert one.told_ids == {"trace_id": TRACE, "span_id": SPAN}
        assert one.parent_span_id == span_id_of(PARENT, TRACE)
        assert one.call is not None
        assert one.call.model == "m"
        assert one.call.input_messages == [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
        assert one.error == "boom"
        assert one.end_ns == 1770091507_000_000_000
    assert (a.start_ns, b.start_ns) == (1770091506_123_456_000, 1770091506_123_000_000)
    assert (a.error_type, a.service) == ("ValueError", "shop")


def test_attributes_alone_have_ids_of_their_content_and_the_files_time(write: Write) -> None:
    told = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "input": "Hi"}
    path = write(told)
    (a,) = spans_in(path)
    assert a.start_ns == path.stat().st_mtime_ns
    assert a.name == "chat m"
    (b,) = spans_in(write(json.dumps(dict(reversed(told.items())), indent=1)))
    assert (a.trace_id, a.span_id) == (b.trace_id, b.span_id)
    (c,) = spans_in(write(told | {"input": "Ho"}))
    assert c.trace_id != a.trace_id


def test_a_langfuse_trace_without_observations_is_one_span(write: Write) -> None:
    trace = {"id": "my-trace", "name": "chat", "timestamp": "2026-02-03T04:05:06.5Z", "observations": [], "scores": []}
    trace["scores"] = [
        {"name": "good", "value": 1, "dataType": "BOOLEAN", "stringValue": "True", "timestamp": "2026-02-03T04:06:00Z"},
        {
            "name": "mood",
            "value": 2,
            "dataType": "CATEGORICAL",
            "stringValue": "sad",
            "timestamp": "2026-02-03T04:06:00Z",
        },
    ]
    span, good, mood = found_in(write(trace))
    assert isinstance(span, ForeignSpan)
    assert span.told_ids == {"trace_id": "my-trace"}
    assert (getattr(good, "score", 0), getattr(good, "label", 0)) == (1.0, "True")
    assert (getattr(mood, "score", 0), getattr(mood, "label", 0)) == (None, "sad")


@pytest.mark.parametrize(
    ("told", "ns"),
    [
        ("2026-02-03T04:05:06.123456789Z", 1770091506_123_456_789),
        ("2026-02-03T05:05:06.5+01:00", 1770091506_500_000_000),
        ("2026-02-03T04:05:06", 1770091506_000_000_000),
        ([1770091506, 5], 1770091506_000_000_005),
        (1770091506, 1770091506_000_000_000),
        (1770091506.25, 1770091506_250_000_000),
        (1770091506123, 1770091506_123_000_000),
        ("1770091506123456789", 1770091506123456789),
        ("soon", None),
        (None, None),
        (True, None),
        (-5, None),
        (2**70, None),
        ([2**70, 0], None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_times(told: Any, ns: int | None) -> None:
    assert time_ns(told) == ns


@pytest.mark.parametrize("told", [2**70, str(2**70), str(2**64 - 1), 2**63, -1])
@pytest.mark.parametrize("name", ["startTimeUnixNano", "endTimeUnixNano"])
def test_what_cannot_be_a_time_is_named(name: str, told: Any, write: Write) -> None:
    path = write(otlp(**{name: told}))
    with pytest.raises(InputError) as error:
        found_in(path)
    where = f"{path}, line 1 (value 1): resourceSpans[0].scopeSpans[0].spans[0].{name}"
    assert str(error.value) == f"{where} is {told}, no time from 1970 to 2262"


def test_a_number_of_thousands_of_digits_is_no_time(write: Write) -> None:
    with pytest.raises(InputError, match="has no startTimeUnixNano"):
        found_in(write(otlp(startTimeUnixNano="9" * 5000)))
