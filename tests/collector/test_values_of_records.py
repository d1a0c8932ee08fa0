"""What a span or a log record has besides attributes is stored as the official exporter would."""

import secrets
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.otlp_bytes import of_bytes

NOW_NS = 1_767_225_600_000_000_000
DAY_NS = 86_400_000_000_000
MAX_INT = 2**63 - 1

Rows = Callable[[str, int], list[dict[str, Any]]]
Send = Callable[[str, Any], None]

# What is sent, in nanoseconds, and what is stored: from 2**63 on the latest time, where the exporter would fail.
TIMES = [
    (0, "1970-01-01 00:00:00.000000000"),
    (1, "1970-01-01 00:00:00.000000001"),
    (946_684_799_999_999_999, "1999-12-31 23:59:59.999999999"),
    (NOW_NS + 123_456_789, "2026-01-01 00:00:00.123456789"),
    (7_258_118_400_000_000_000, "2200-01-01 00:00:00.000000000"),
    (MAX_INT, "2262-04-11 23:47:16.854775807"),
    (MAX_INT + 1, "2262-04-11 23:47:16.854775807"),
    (2**64 - 1, "2262-04-11 23:47:16.854775807"),
]

# An id, and its text. One of zeros is none; for one of another length the official Collector refuses the whole request.
ZEROS = b"\0" * 15
TRACE_IDS = [(b"", ""), (b"\0" * 16, ""), (ZEROS + b"\xab", "00" * 15 + "ab"), (b"\xff" * 16, "ff" * 16), (b"\1", "01")]
SPAN_IDS = [(b"", ""), (b"\0" * 8, ""), (b"\1" + b"\0" * 7, "01" + "00" * 7), (b"\xab" * 8, "ab" * 8), (b"\1", "01")]

# Start, end, duration. The exporter writes 2**64 - 1 for the last but one; here a span that ends before it starts, or
# has not ended, takes no time.
DURATIONS = [
    (NOW_NS, NOW_NS + 5, 5),
    (NOW_NS, NOW_NS, 0),
    (0, MAX_INT, MAX_INT),
    (NOW_NS, NOW_NS - 1, 0),
    (NOW_NS, 0, 0),
]

KINDS = ["Unspecified", "Internal", "Server", "Client", "Producer", "Consumer", ""]
STATUSES = ["Unset", "Ok", "Error", ""]


def spans(name: str, count: int) -> tuple[Any, list[Any]]:
    """A request, and its spans; the number of each is its status message."""
    request = of_bytes(ExportTraceServiceRequest)()
    scope = request.resource_spans.add().scope_spans.add()
    made = [scope.spans.add(name=name.encode(), start_time_unix_nano=NOW_NS) for _ in range(count)]
    for number, span in enumerate(made):
        span.status.message = b"%04d" % number
    return request, made


def records(name: str, count: int) -> tuple[Any, list[Any]]:
    """A request, and its log records; the number of each is its severity text."""
    request = of_bytes(ExportLogsServiceRequest)()
    scope = request.resource_logs.add().scope_logs.add()
    made = [scope.log_records.add(event_name=name.encode()) for _ in range(count)]
    for number, record in enumerate(made):
        record.severity_text = b"%04d" % number
    return request, made


def test_times(send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    request, made = spans(name, len(TIMES))
    logged, lines = records(name, 2 * len(TIMES))
    measured = of_bytes(ExportMetricsServiceRequest)()
    points = measured.resource_metrics.add().scope_metrics.add().metrics.add(name=name.encode()).gauge.data_points
    for number, (time_ns, _) in enumerate(TIMES):
        made[number].start_time_unix_nano = made[number].events.add().time_unix_nano = time_ns
        lines[2 * number].time_unix_nano = time_ns
        lines[2 * number].observed_time_unix_nano = lines[2 * number + 1].observed_time_unix_nano = time_ns
        point = points.add(time_unix_nano=time_ns, start_time_unix_nano=time_ns, as_int=number)
        point.exemplars.add(time_unix_nano=time_ns)
    for signal, body in (("traces", request), ("logs", logged), ("metrics", measured)):
        send(signal, body)
    times = [text for _, text in TIMES]
    found = rows(
        "SELECT toString(Timestamp, 'UTC') AS t, toString(Events.Timestamp[1], 'UTC') AS e FROM otel_traces "
        f"WHERE SpanName = '{name}' ORDER BY StatusMessage",
        len(TIMES),
    )
    assert [(row["t"], row["e"]) for row in found] == [(time, time) for time in times]
    found = rows(
        f"SELECT toString(Timestamp, 'UTC') AS t FROM otel_logs WHERE EventName = '{name}' ORDER BY SeverityText",
        2 * len(TIMES),
    )
    assert [row["t"] for row in found] == [time for time in times for _ in range(2)]
    found = rows(
        "SELECT toString(StartTimeUnix, 'UTC') AS s, toString(TimeUnix, 'UTC') AS t, "
        "toString(Exemplars.TimeUnix[1], 'UTC') AS e "
        f"FROM otel_metrics_gauge WHERE MetricName = '{name}' ORDER BY Value",
        len(TIMES),
    )
    assert [(row["s"], row["t"], row["e"]) for row in found] == [(time, time, time) for time in times]


def test_ids(send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    request, made = spans(name, len(SPAN_IDS))
    logged, lines = records(name, len(SPAN_IDS))
    for number, ((trace_id, _), (span_id, _)) in enumerate(zip(TRACE_IDS, SPAN_IDS, strict=True)):
        made[number].trace_id = lines[number].trace_id = trace_id
        made[number].span_id = made[number].parent_span_id = lines[number].span_id = span_id
        made[number].links.add(trace_id=trace_id, span_id=span_id)
    send("traces", request)
    send("logs", logged)
    texts = [(trace_id, span_id) for (_, trace_id), (_, span_id) in zip(TRACE_IDS, SPAN_IDS, strict=True)]
    found = rows(
        "SELECT TraceId, SpanId, ParentSpanId, Links.TraceId[1] AS t, Links.SpanId[1] AS s FROM otel_traces "
        f"WHERE SpanName = '{name}' ORDER BY StatusMessage",
        len(SPAN_IDS),
    )
    assert [tuple(row.values()) for row in found] == [(trace, span, span, trace, span) for trace, span in texts]
    found = rows(
        f"SELECT TraceId, SpanId FROM otel_logs WHERE EventName = '{name}' ORDER BY SeverityText", len(SPAN_IDS)
    )
    assert [tuple(row.values()) for row in found] == texts


def test_durations_kinds_and_statuses(send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    request, made = spans(name, len(KINDS))
    for number, span in enumerate(made):
        span.kind = number
        span.status.code = number % len(STATUSES)
        span.trace_state = b"a=b"
        span.start_time_unix_nano, span.end_time_unix_nano, _ = DURATIONS[number % len(DURATIONS)]
    send("traces", request)
    found = rows(
        "SELECT SpanKind, StatusCode, Duration, TraceState FROM otel_traces "
        f"WHERE SpanName = '{name}' ORDER BY StatusMessage",
        len(KINDS),
    )
    assert [(row["SpanKind"], row["StatusCode"], int(row["Duration"]), row["TraceState"]) for row in found] == [
        (kind, STATUSES[number % len(STATUSES)], DURATIONS[number % len(DURATIONS)][2], "a=b")
        for number, kind in enumerate(KINDS)
    ]


def test_a_log_record(send: Send, rows: Rows) -> None:
    name = secrets.token_hex(8)
    request, (full, _empty) = records(name, 2)
    resource = request.resource_logs[0]
    resource.schema_url, resource.scope_logs[0].schema_url = b"https://r", b"https://s"
    resource.scope_logs[0].scope.name, resource.scope_logs[0].scope.version = b"scope", b"1.2"
    full.flags, full.severity_number, full.time_unix_nano = 0x101, 17, NOW_NS
    send("logs", request)
    found = rows(
        "SELECT TraceFlags, SeverityNumber, Body, ResourceSchemaUrl, ScopeSchemaUrl, ScopeName, ScopeVersion, "
        f"toUnixTimestamp(TimestampTime) AS t FROM otel_logs WHERE EventName = '{name}' ORDER BY SeverityText",
        2,
    )
    common = ("", "https://r", "https://s", "scope", "1.2")
    assert [tuple(row.values()) for row in found] == [(1, 17, *common, NOW_NS // 10**9), (0, 0, *common, 0)]


@pytest.mark.parametrize("signal", ["traces", "logs"])
def test_a_request_of_very_many_days(signal: str, send: Send, rows: Rows) -> None:
    """A part holds one day: by default ClickHouse refuses an insert of more than 100."""
    name = secrets.token_hex(8)
    days = 130
    if signal == "traces":
        request, made = spans(name, days)
        for number, span in enumerate(made):
            span.start_time_unix_nano = NOW_NS - number * DAY_NS
        column, table = "SpanName", "otel_traces"
    else:
        request, made = records(name, days)
        for number, record in enumerate(made):
            record.time_unix_nano = NOW_NS - number * DAY_NS
        column, table = "EventName", "otel_logs"
    send(signal, request)
    assert len(rows(f"SELECT Timestamp FROM {table} WHERE {column} = '{name}'", days)) == days
