"""Every value is stored as the official exporter would: on the engine's path, on Python's, and from OTLP/JSON."""

import json
import math
import random
import secrets
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_values import CASES, FAST, Case, Text, any_value, json_value, set_attributes

from collector.nested import flattened
from collector.otlp_bytes import of_bytes
from collector.signals import LOGS, TRACES
from collector.value_text import text

NOW_NS = 1_767_225_600_000_000_000
PATHS = pytest.mark.parametrize("cases", [FAST, CASES], ids=["engine", "python"])

Rows = Callable[[str, int], list[dict[str, Any]]]
Send = Callable[[str, Any], None]


def attributes_sql(column: str) -> str:
    """The map as (key, value) pairs, in hex: JSON cannot hold every value."""
    return f"arrayMap((k, v) -> (hex(k), hex(v)), mapKeys({column}), mapValues({column}))"


def attributes(pairs: list[list[str]]) -> list[tuple[str, bytes]]:
    """What `attributes_sql` selected, sorted by key: the exporter sorts them, here they are as they came."""
    return sorted(
        ((bytes.fromhex(key).decode(), bytes.fromhex(value)) for key, value in pairs), key=lambda pair: pair[0]
    )


def expected(cases: list[Case], **others: bytes) -> list[tuple[str, bytes]]:
    """The attributes of `cases` and `others`, sorted by key."""
    return sorted({**{case.name: case.text for case in cases}, **others}.items())


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_text_that_python_writes(case: Case) -> None:
    assert text(any_value(case.value)) == case.text


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_python_writes_only_what_the_engine_cannot(case: Case) -> None:
    for request, signal in ((traces_of([case]), TRACES), (logs_of([case]), LOGS)):
        body = request.SerializeToString()
        assert (flattened(signal, body) is not body) == case.is_slow


def traces_of(cases: list[Case], name: str = "") -> Any:
    """One span with `cases` on the resource, the span, its event and its link."""
    request = of_bytes(ExportTraceServiceRequest)()
    resource = request.resource_spans.add()
    set_attributes(resource.resource.attributes, cases)
    span = resource.scope_spans.add().spans.add(
        trace_id=secrets.token_bytes(16),
        span_id=secrets.token_bytes(8),
        name=name.encode(),
        start_time_unix_nano=NOW_NS,
    )
    for part in (
        span,
        span.events.add(name=b"e", time_unix_nano=NOW_NS),
        span.links.add(trace_id=secrets.token_bytes(16)),
    ):
        set_attributes(part.attributes, cases)
    return request


def logs_of(cases: list[Case], name: str = "") -> Any:
    """A record a case, which is its body, with all of them on each, its scope and its resource."""
    request = of_bytes(ExportLogsServiceRequest)()
    resource = request.resource_logs.add()
    set_attributes(resource.resource.attributes, cases)
    scope = resource.scope_logs.add()
    set_attributes(scope.scope.attributes, cases)
    for case in cases:
        record = scope.log_records.add(
            event_name=name.encode(), severity_text=case.name.encode(), time_unix_nano=NOW_NS
        )
        set_attributes(record.attributes, cases)
        if case.value is not None:
            record.body.CopyFrom(any_value(case.value))
    return request


@PATHS
def test_spans(cases: list[Case], send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    send("traces", traces_of(cases, name))
    places = ["ResourceAttributes", "SpanAttributes", "Events.Attributes[1]", "Links.Attributes[1]"]
    selected = ", ".join(f"{attributes_sql(place)} AS p{index}" for index, place in enumerate(places))
    (row,) = rows(f"SELECT {selected} FROM otel_traces WHERE SpanName = '{name}'", 1)
    for index, place in enumerate(places):
        assert attributes(row[f"p{index}"]) == expected(cases), place


@PATHS
def test_logs(cases: list[Case], send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    send("logs", logs_of(cases, name))
    places = ["ResourceAttributes", "ScopeAttributes", "LogAttributes"]
    selected = ", ".join(f"{attributes_sql(place)} AS p{index}" for index, place in enumerate(places))
    found = rows(
        f"SELECT SeverityText AS case, hex(Body) AS body, {selected} FROM otel_logs WHERE EventName = '{name}'",
        len(cases),
    )
    assert sorted((row["case"], bytes.fromhex(row["body"])) for row in found) == expected(cases)
    for index, place in enumerate(places):
        assert all(attributes(row[f"p{index}"]) == expected(cases) for row in found), place


def test_metrics(send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    request = of_bytes(ExportMetricsServiceRequest)()
    resource = request.resource_metrics.add()
    set_attributes(resource.resource.attributes, CASES)
    scope = resource.scope_metrics.add()
    set_attributes(scope.scope.attributes, CASES)
    metric = scope.metrics.add(name=name.encode())
    point = metric.gauge.data_points.add(time_unix_nano=NOW_NS)
    set_attributes(point.attributes, CASES)
    set_attributes(point.exemplars.add(time_unix_nano=NOW_NS).filtered_attributes, CASES)
    send("metrics", request)
    places = ["ResourceAttributes", "ScopeAttributes", "Attributes", "Exemplars.FilteredAttributes[1]"]
    selected = ", ".join(f"{attributes_sql(place)} AS p{index}" for index, place in enumerate(places))
    (row,) = rows(f"SELECT {selected} FROM otel_metrics_gauge WHERE MetricName = '{name}'", 1)
    for index, place in enumerate(places):
        assert attributes(row[f"p{index}"]) == expected(CASES), place


def _in_json(case: Case) -> bool:
    """Whether JSON can say it: it has no bytes that are no UTF-8, and readers have an end."""

    def is_sayable(value: Any) -> bool:
        if isinstance(value, dict | list | tuple):
            items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            return all(is_sayable(item) for item in items)
        return not isinstance(value, Text)

    return is_sayable(case.value) and "deep" not in case.name.split(".")[0]


def test_json(collector: Any, fetch: Callable[..., Any], rows: Rows) -> None:
    cases = [case for case in CASES if _in_json(case)]
    name = secrets.token_hex(8)
    sent = [{"key": case.name, "value": json_value(case.value)} for case in cases]
    span = {"traceId": secrets.token_hex(16), "spanId": secrets.token_hex(8), "name": name, "kind": 3}
    span |= {"startTimeUnixNano": str(NOW_NS), "endTimeUnixNano": str(NOW_NS + 5), "attributes": sent}
    traces = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    records = [{"eventName": name, "severityText": case.name, "body": json_value(case.value)} for case in cases]
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}
    for path, request in (("/v1/traces", traces), ("/v1/logs", logs)):
        reply = fetch(collector.otlp + path, json.dumps(request).encode(), content_type="application/json")
        assert reply.status == 200, reply.body
    (row,) = rows(f"SELECT {attributes_sql('SpanAttributes')} AS a FROM otel_traces WHERE SpanName = '{name}'", 1)
    assert attributes(row["a"]) == expected(cases)
    found = rows(f"SELECT SeverityText AS c, hex(Body) AS b FROM otel_logs WHERE EventName = '{name}'", len(cases))
    assert sorted((row["c"], bytes.fromhex(row["b"])) for row in found) == expected(cases)


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_key_that_is_there_twice(is_slow: bool, send: Send, rows: Rows) -> None:
    """Both are kept, as the exporter does; a look-up finds the first."""
    name = secrets.token_hex(8)
    request = traces_of([])
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.name = name.encode()
    last: Any = {} if is_slow else 3
    for value in ("first", "second", last):
        span.attributes.add(key=b"twice").value.CopyFrom(any_value(value))
    resource = request.resource_spans[0].resource
    for value in (5, "other"):
        resource.attributes.add(key=b"service.name").value.CopyFrom(any_value(value))
    send("traces", request)
    selected = f"{attributes_sql('SpanAttributes')} AS a, SpanAttributes['twice'] AS v, ServiceName AS s"
    (row,) = rows(f"SELECT {selected} FROM otel_traces WHERE SpanName = '{name}'", 1)
    assert [value for _, value in attributes(row["a"])] == [b"first", b"second", b"{}" if is_slow else b"3"]
    assert (row["v"], row["s"]) == ("first", "5")


def test_every_double_has_the_shortest_digits_on_either_path(send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    chosen = random.Random(7)
    doubles = [struct.unpack("<d", chosen.randbytes(8))[0] for _ in range(400)]
    doubles += [chosen.uniform(-1, 1) * 10.0 ** chosen.randint(-10, 23) for _ in range(400)]
    cases = [Case(f"{number:03d}", double, text(any_value(double))) for number, double in enumerate(doubles)]
    request = traces_of([])
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.name = name.encode()
    set_attributes(span.attributes, cases)
    assert flattened(TRACES, body := request.SerializeToString()) is body
    send("traces", request)
    (row,) = rows(f"SELECT {attributes_sql('SpanAttributes')} AS a FROM otel_traces WHERE SpanName = '{name}'", 1)
    assert attributes(row["a"]) == expected(cases)
    assert [float(case.text) for case in cases if case.text[:1] != b"j"] == list(filter(math.isfinite, doubles))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e15, 1e15) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_the_text_of_an_array_or_a_map_is_its_json(value: Any) -> None:
    written = text(any_value(value)).decode()
    assert json.loads(written) == value
    assert not {"\u2028", "\u2029"} & set(written)
