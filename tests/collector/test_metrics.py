"""Metrics in the official exporter's tables: every kind of data point, and the exporter's own INSERT statements."""

import math
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

NOW_NS = 1_767_225_600_123_456_789
NOW = "2026-01-01 00:00:00.123456789"
NONE = "1970-01-01 00:00:00.000000000"

Rows = Callable[[str, int], list[dict[str, Any]]]
Send = Callable[[str, Any], None]

COMMON = {
    "ResourceAttributes": {"service.name": "agent"},
    "ResourceSchemaUrl": "https://r",
    "ScopeName": "scope",
    "ScopeVersion": "1.2",
    "ScopeAttributes": {"s": "1"},
    "ScopeDroppedAttrCount": 3,
    "ScopeSchemaUrl": "https://s",
    "ServiceName": "agent",
    "MetricDescription": "what it is",
    "MetricUnit": "ms",
    "Attributes": {"a": "true", "b": "2"},
    "StartTimeUnix": NONE,
    "TimeUnix": NOW,
    "Flags": 1,
}
EXEMPLARS = {
    "Exemplars.FilteredAttributes": [{"x": "y"}, {}],
    "Exemplars.TimeUnix": [NOW, NONE],
    "Exemplars.Value": [2.5, -7],
    "Exemplars.SpanId": ["02" * 8, "00" * 8],
    "Exemplars.TraceId": ["01" * 16, "00" * 16],
}
IDENTITY = ["ResourceAttributes", "ResourceSchemaUrl", "ScopeName", "ScopeVersion", "ScopeAttributes"]
IDENTITY += ["ScopeDroppedAttrCount", "ScopeSchemaUrl", "ServiceName", "MetricName", "MetricDescription", "MetricUnit"]
IDENTITY += ["Attributes", "StartTimeUnix", "TimeUnix"]

# The columns into which the official exporter inserts, in its order.
HISTOGRAM = ["Flags", "Min", "Max", "AggregationTemporality"]
BUCKETS = ["PositiveOffset", "PositiveBucketCounts", "NegativeOffset", "NegativeBucketCounts"]
EXPORTER: dict[str, list[str]] = {
    "gauge": [*IDENTITY, "Value", "Flags", *EXEMPLARS],
    "sum": [*IDENTITY, "Value", "Flags", *EXEMPLARS, "AggregationTemporality", "IsMonotonic"],
    "histogram": [*IDENTITY, "Count", "Sum", "BucketCounts", "ExplicitBounds", *EXEMPLARS, *HISTOGRAM],
    "exponential_histogram": [*IDENTITY, "Count", "Sum", "Scale", "ZeroCount", *BUCKETS, *EXEMPLARS, *HISTOGRAM],
    "summary": [*IDENTITY, "Count", "Sum", "ValueAtQuantiles.Quantile", "ValueAtQuantiles.Value", "Flags"],
}
MEASURED: dict[str, dict[str, Any]] = {
    "gauge": {"Value": -5},
    "sum": {"Value": 1.5, "AggregationTemporality": 2, "IsMonotonic": True},
    "histogram": {
        "Count": 2**63,
        "Sum": 1.5,
        "BucketCounts": [1, 2**63 - 1],
        "ExplicitBounds": [0.5],
        "Min": -1,
        "Max": 2,
        "AggregationTemporality": 1,
    },
    "exponential_histogram": {
        "Count": 7,
        "Sum": 1.5,
        "Scale": -3,
        "ZeroCount": 4,
        "PositiveOffset": -2,
        "PositiveBucketCounts": [1, 300],
        "NegativeOffset": 5,
        "NegativeBucketCounts": [2],
        "Min": -1,
        "Max": 2,
        "AggregationTemporality": 2,
    },
    "summary": {
        "Count": 3,
        "Sum": 4.5,
        "ValueAtQuantiles.Quantile": [0.5, 1],
        "ValueAtQuantiles.Value": [1.25, 3],
    },
}
KINDS = pytest.mark.parametrize("kind", list(EXPORTER))


def expected(kind: str, name: str) -> dict[str, Any]:
    """The row."""
    exemplars = {} if kind == "summary" else EXEMPLARS
    return {**COMMON, **exemplars, **MEASURED[kind], "MetricName": name}


def selected(kind: str) -> str:
    """The exporter's columns, under their names."""
    return ", ".join(f"`{column}`" for column in EXPORTER[kind])


def request(name: str) -> tuple[ExportMetricsServiceRequest, Any]:
    """A request, and its scope."""
    made = ExportMetricsServiceRequest()
    resource = made.resource_metrics.add(schema_url="https://r")
    resource.resource.attributes.add(key="service.name").value.string_value = "agent"
    scope = resource.scope_metrics.add(schema_url="https://s")
    scope.scope.name, scope.scope.version, scope.scope.dropped_attributes_count = "scope", "1.2", 3
    scope.scope.attributes.add(key="s").value.int_value = 1
    scope.metrics.add(name=name, description="what it is", unit="ms")
    return made, scope


def measure(kind: str, metric: Metric) -> None:
    """The data point of MEASURED."""
    points = getattr(metric, kind).data_points
    point = points.add(time_unix_nano=NOW_NS, flags=1)
    point.attributes.add(key="b").value.int_value = 2
    point.attributes.add(key="a").value.bool_value = True
    if kind != "summary":
        first = point.exemplars.add(time_unix_nano=NOW_NS, as_double=2.5, trace_id=b"\1" * 16, span_id=b"\2" * 8)
        first.filtered_attributes.add(key="x").value.string_value = "y"
        point.exemplars.add(as_int=-7)
    match kind:
        case "gauge":
            point.as_int = -5
        case "sum":
            point.as_double = 1.5
            metric.sum.aggregation_temporality, metric.sum.is_monotonic = 2, True
        case "histogram":
            point.count, point.sum, point.min, point.max = 2**63, 1.5, -1, 2
            point.bucket_counts.extend([1, 2**63 - 1])
            point.explicit_bounds.append(0.5)
            metric.histogram.aggregation_temporality = 1
        case "exponential_histogram":
            point.count, point.sum, point.min, point.max, point.scale, point.zero_count = 7, 1.5, -1, 2, -3, 4
            point.positive.offset, point.negative.offset = -2, 5
            point.positive.bucket_counts.extend([1, 300])
            point.negative.bucket_counts.append(2)
            metric.exponential_histogram.aggregation_temporality = 2
        case "summary":
            point.count, point.sum = 3, 4.5
            point.quantile_values.add(quantile=0.5, value=1.25)
            point.quantile_values.add(quantile=1, value=3)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row, with 64-bit integers as numbers."""
    return {key: int(value) if key in ("Count", "ZeroCount") else value for key, value in row.items()}


@KINDS
def test_every_field_of_a_data_point_is_kept(kind: str, send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    made, scope = request(name)
    measure(kind, scope.metrics[0])
    send("metrics", made)
    (row,) = rows(f"SELECT {selected(kind)} FROM otel_metrics_{kind} WHERE MetricName = '{name}'", 1)
    assert plain(row) == expected(kind, name)


def test_kinds_and_requests_together(send: Send, rows: Rows) -> None:
    """Points of all kinds in one request, several to a metric, and a metric that measured nothing."""
    name = secrets.token_hex(8)
    made, scope = request(name)
    for kind in EXPORTER:
        metric = scope.metrics.add(name=name)
        measure(kind, metric)
        measure(kind, metric)
    scope.metrics.add(name=name).gauge.SetInParent()
    send("metrics", made)
    send("metrics", made)
    for kind in EXPORTER:
        assert len(rows(f"SELECT Flags FROM otel_metrics_{kind} WHERE MetricName = '{name}'", 4)) == 4


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 2**53, -(2**63)])
def test_a_number_is_a_double(number: float, send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    made, scope = request(name)
    point = scope.metrics[0].gauge.data_points.add(time_unix_nano=NOW_NS)
    if isinstance(number, int):
        point.as_int = number
    else:
        point.as_double = number
    send("metrics", made)
    (row,) = rows(
        f"SELECT toString(Value) AS v, toString(toFloat64('{number}')) AS w FROM otel_metrics_gauge "
        f"WHERE MetricName = '{name}'",
        1,
    )
    assert row["v"] == row["w"]


@KINDS
def test_the_official_exporter_can_insert(kind: str, collector: Any, rows: Rows) -> None:
    name = secrets.token_hex(8)
    row = expected(kind, name)
    values = ", ".join(_literal(row[column]) for column in EXPORTER[kind])
    collector.sql(f"INSERT INTO otel_metrics_{kind} ({selected(kind)}) VALUES ({values})")
    (stored,) = rows(f"SELECT {selected(kind)} FROM otel_metrics_{kind} WHERE MetricName = '{name}'", 1)
    assert plain(stored) == row


def _literal(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f"'{value}'"
        case dict():
            return "map(" + ", ".join(f"'{key}', '{item}'" for key, item in value.items()) + ")"
        case list():
            return "[" + ", ".join(_literal(item) for item in value) + "]"
    return str(value)
