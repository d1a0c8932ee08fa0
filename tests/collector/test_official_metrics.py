"""What the official Collector's ClickHouse exporter inserts of metrics makes the rows that OTLP makes of the same."""

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from clickhouse_go import ClickHouseGo, RefusedError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from tracegrad import otlp

START = 1_772_100_000_000_000_123
POINT = START + 1_500_000_000
OF_ALL = (
    "ResourceAttributes",
    "ResourceSchemaUrl",
    "ScopeName",
    "ScopeVersion",
    "ScopeAttributes",
    "ScopeDroppedAttrCount",
    "ScopeSchemaUrl",
    "ServiceName",
    "MetricName",
    "MetricDescription",
    "MetricUnit",
    "Attributes",
    "StartTimeUnix",
    "TimeUnix",
)
EXEMPLARS = (
    "Exemplars.FilteredAttributes",
    "Exemplars.TimeUnix",
    "Exemplars.Value",
    "Exemplars.SpanId",
    "Exemplars.TraceId",
)
COMMON: dict[str, Any] = {
    "ResourceAttributes": {"service.name": "writer"},
    "ResourceSchemaUrl": "https://resource/1",
    "ScopeName": "meter",
    "ScopeVersion": "1.2.3",
    "ScopeAttributes": {"of": "scope"},
    "ScopeDroppedAttrCount": 2,
    "ScopeSchemaUrl": "https://scope/1",
    "ServiceName": "writer",
    "MetricDescription": "What it is",
    "MetricUnit": "s",
    "Attributes": {"k": "v", "n": "3"},
    "StartTimeUnix": START,
    "TimeUnix": POINT,
    "Flags": 0,
    "Exemplars.FilteredAttributes": [{"why": "slow"}],
    "Exemplars.TimeUnix": [POINT - 5],
    "Exemplars.Value": [0.25],
    "Exemplars.SpanId": [bytes(range(8)).hex()],
    "Exemplars.TraceId": [bytes(range(16)).hex()],
}


@dataclass(frozen=True)
class Kind:
    """`columns`: behind OF_ALL, in the statement's order. `row`: what the exporter appends; `fill`: that by OTLP."""

    table: str
    columns: Sequence[str]
    row: dict[str, Any]
    fill: Callable[[Metric], Any]


def gauge(metric: Metric) -> Any:
    return metric.gauge.data_points.add(as_double=1.5)


def counter(metric: Metric) -> Any:
    metric.sum.aggregation_temporality, metric.sum.is_monotonic = 2, True
    return metric.sum.data_points.add(as_int=7)


def histogram(metric: Metric) -> Any:
    metric.histogram.aggregation_temporality = 1
    values = {"count": 3, "sum": 4.5, "min": 0.5, "max": 2.5}
    return metric.histogram.data_points.add(**values, bucket_counts=[1, 2, 0], explicit_bounds=[1.0, 2.5])


def exponential(metric: Metric) -> Any:
    metric.exponential_histogram.aggregation_temporality = 2
    values = {"count": 6, "sum": 4.5, "min": -2, "max": 2.5, "scale": -1, "zero_count": 1}
    point = metric.exponential_histogram.data_points.add(**values)
    point.positive.offset, point.negative.offset = 3, -4
    point.positive.bucket_counts.extend([1, 2])
    point.negative.bucket_counts.extend([2])
    return point


def summary(metric: Metric) -> Any:
    point = metric.summary.data_points.add(count=3, sum=4.5)
    for quantile, value in ((0.5, 1.25), (0.99, 2.0)):
        point.quantile_values.add(quantile=quantile, value=value)
    return point


KINDS = {
    "gauge": Kind("otel_metrics_gauge", ("Value", "Flags", *EXEMPLARS), {"Value": 1.5}, gauge),
    "sum": Kind(
        "otel_metrics_sum",
        ("Value", "Flags", *EXEMPLARS, "AggregationTemporality", "IsMonotonic"),
        {"Value": 7.0, "AggregationTemporality": 2, "IsMonotonic": True},
        counter,
    ),
    "histogram": Kind(
        "otel_metrics_histogram",
        ("Count", "Sum", "BucketCounts", "ExplicitBounds", *EXEMPLARS, "Flags", "Min", "Max", "AggregationTemporality"),
        {"Count": 3, "Sum": 4.5, "Min": 0.5, "Max": 2.5, "BucketCounts": [1, 2, 0], "ExplicitBounds": [1.0, 2.5]}
        | {"AggregationTemporality": 1},
        histogram,
    ),
    "exponential histogram": Kind(
        "otel_metrics_exponential_histogram",
        (
            *("Count", "Sum", "Scale", "ZeroCount", "PositiveOffset", "PositiveBucketCounts", "NegativeOffset"),
            *("NegativeBucketCounts", *EXEMPLARS, "Flags", "Min", "Max", "AggregationTemporality"),
        ),
        {"Count": 6, "Sum": 4.5, "Min": -2.0, "Max": 2.5, "Scale": -1, "ZeroCount": 1, "AggregationTemporality": 2}
        | {"PositiveOffset": 3, "PositiveBucketCounts": [1, 2], "NegativeOffset": -4, "NegativeBucketCounts": [2]},
        exponential,
    ),
    "summary": Kind(
        "otel_metrics_summary",
        ("Count", "Sum", "ValueAtQuantiles.Quantile", "ValueAtQuantiles.Value", "Flags"),
        {"Count": 3, "Sum": 4.5, "ValueAtQuantiles.Quantile": [0.5, 0.99], "ValueAtQuantiles.Value": [1.25, 2.0]},
        summary,
    ),
}


def request(kind: Kind, name: str) -> ExportMetricsServiceRequest:
    sent = ExportMetricsServiceRequest()
    of_resource = sent.resource_metrics.add(schema_url=COMMON["ResourceSchemaUrl"])
    of_resource.resource.attributes.extend(otlp.attributes(COMMON["ResourceAttributes"]))
    of_scope = of_resource.scope_metrics.add(schema_url=COMMON["ScopeSchemaUrl"])
    of_scope.scope.name, of_scope.scope.version = COMMON["ScopeName"], COMMON["ScopeVersion"]
    of_scope.scope.attributes.extend(otlp.attributes(COMMON["ScopeAttributes"]))
    of_scope.scope.dropped_attributes_count = COMMON["ScopeDroppedAttrCount"]
    point = kind.fill(
        of_scope.metrics.add(name=name, description=COMMON["MetricDescription"], unit=COMMON["MetricUnit"])
    )
    point.start_time_unix_nano, point.time_unix_nano = START, POINT
    point.attributes.extend(otlp.attributes({"k": "v", "n": 3}))
    if hasattr(point, "exemplars"):
        exemplar = point.exemplars.add(time_unix_nano=POINT - 5, as_double=0.25)
        exemplar.span_id, exemplar.trace_id = bytes(range(8)), bytes(range(16))
        exemplar.filtered_attributes.extend(otlp.attributes({"why": "slow"}))
    return sent


def stored(collector: Any, table: str, name: str) -> dict[str, Any]:
    """The one row of the metric, once it is there."""
    deadline = time.monotonic() + 60
    while not (rows := collector.sql(f"SELECT * FROM {table} WHERE MetricName = '{name}' FORMAT JSONEachRow")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (row,) = [json.loads(line) for line in rows.splitlines()]
    return {column: value for column, value in row.items() if column not in {"MetricName", "IngestId"}}


@pytest.mark.parametrize("chosen", KINDS)
def test_rows_are_those_that_come_by_otlp(chosen: str, collector: Any, fetch: Any) -> None:
    kind, by_otlp, official = KINDS[chosen], f"otlp-{secrets.token_hex(6)}", f"official-{secrets.token_hex(6)}"
    body = request(kind, by_otlp).SerializeToString()
    assert fetch(f"{collector.otlp}/v1/metrics", body, content_type="application/x-protobuf").status == 200
    client = ClickHouseGo(collector.clickhouse, collector.writer, compress="lz4")
    client.insert(f'"otel"."{kind.table}"', [*OF_ALL, *kind.columns], [COMMON | kind.row | {"MetricName": official}])
    found = stored(collector, kind.table, official)
    assert found == stored(collector, kind.table, by_otlp)
    assert {"MetricName", *found} == {*OF_ALL, *kind.columns}, "every column of the table is one of the exporter's"


def test_the_newer_layout_of_series_is_refused(collector: Any) -> None:
    """Tables in which points name a series by its hash: these have no such column."""
    with pytest.raises(RefusedError, match="SeriesHash"):
        ClickHouseGo(collector.clickhouse, collector.writer).post(
            "INSERT INTO otel.otel_metrics_sum (MetricName, SeriesHash, TimeUnix, Value) FORMAT Native", b"\0\0"
        )
