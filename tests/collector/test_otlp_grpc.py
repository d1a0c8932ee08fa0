"""OTLP/gRPC into a real collector: from OpenTelemetry's own exporters, and from raw clients."""

import secrets
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from otlp_receivers import EXPORT, gauge_points, log_records, spans, trace_of

STORED_S = 30


@pytest.fixture
def channel(collector: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(collector.grpc) as opened:
        yield opened


def exporters(collector: Any, transport: str) -> tuple[Any, Any, Any]:
    """For spans, log records and metrics."""
    if transport == "grpc":
        options = {"endpoint": collector.grpc, "insecure": True, "compression": grpc.Compression.Gzip}
        return GrpcSpans(**options), GrpcLogs(**options), GrpcMetrics(**options)
    compression = Compression.Gzip if transport == "http gzip" else Compression.Deflate
    return tuple(
        kind(endpoint=f"{collector.otlp}/v1/{signal}", compression=compression)
        for kind, signal in ((HttpSpans, "traces"), (HttpLogs, "logs"), (HttpMetrics, "metrics"))
    )


@pytest.mark.parametrize("transport", ["grpc", "http gzip", "http deflate"])
def test_opentelemetrys_exporters_are_taken(collector: Any, rows: Any, transport: str) -> None:
    of_spans, of_logs, of_metrics = exporters(collector, transport)
    tracing, logging = TracerProvider(), LoggerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(of_spans))
    logging.add_log_record_processor(SimpleLogRecordProcessor(of_logs))
    with tracing.get_tracer("lib").start_as_current_span("work", attributes={"n": 7}) as span:
        logging.get_logger("lib").emit(body="it happened", event_name="something")
    trace = f"{span.get_span_context().trace_id:032x}"
    reader = InMemoryMetricReader()
    name = f"calls.{secrets.token_hex(4)}"
    measuring = MeterProvider([reader])
    measuring.get_meter("lib").create_counter(name).add(3, {"kind": "a"})
    assert of_metrics.export(reader.get_metrics_data()).name == "SUCCESS"

    query = f"SELECT SpanName, SpanAttributes['n'] AS n FROM otel_traces WHERE TraceId = '{trace}'"
    assert rows(query, 1) == [{"SpanName": "work", "n": "7"}]
    query = f"SELECT Body, EventName FROM otel_logs WHERE TraceId = '{trace}'"
    assert rows(query, 1) == [{"Body": "it happened", "EventName": "something"}]
    query = f"SELECT Value, Attributes['kind'] AS kind FROM otel_metrics_sum WHERE MetricName = '{name}'"
    assert rows(query, 1) == [{"Value": 3, "kind": "a"}]
    for provider in (tracing, logging, measuring):
        provider.shutdown()


@pytest.mark.parametrize("compression", list(grpc.Compression))
def test_raw_requests_of_each_signal(channel: grpc.Channel, rows: Any, compression: grpc.Compression) -> None:
    traces, name = spans(3), f"g.{secrets.token_hex(4)}"
    trace = trace_of(traces)
    for signal_name, request in {
        "traces": traces,
        "logs": log_records(2, bytes.fromhex(trace)),
        "metrics": gauge_points(1, name),
    }.items():
        assert channel.unary_unary(EXPORT[signal_name])(request.SerializeToString(), compression=compression) == b""
    assert rows(f"SELECT count() AS n FROM otel_traces WHERE TraceId = '{trace}' HAVING n = 3", 1)
    assert rows(f"SELECT count() AS n FROM otel_logs WHERE TraceId = '{trace}' HAVING n = 2", 1)
    assert rows(f"SELECT Value FROM otel_metrics_gauge WHERE MetricName = '{name}'", 1)


@pytest.mark.parametrize("body", [b"garbage!!", spans().SerializeToString()[:-1], b"\xff" * 11])
def test_a_malformed_request_is_an_invalid_argument(channel: grpc.Channel, body: bytes) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(EXPORT["traces"])(body)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    status = Status.FromString(dict(refused.value.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message, len(status.details)) == (3, refused.value.details(), 0)
    assert "OTLP traces" in status.message


def test_an_empty_request_is_accepted(channel: grpc.Channel) -> None:
    assert channel.unary_unary(EXPORT["logs"])(b"") == b""


def test_many_at_once_are_all_stored(channel: grpc.Channel, rows: Any) -> None:
    requests = [spans(20) for _ in range(100)]
    export = channel.unary_unary(EXPORT["traces"])
    with ThreadPoolExecutor(32) as threads:
        assert set(threads.map(lambda request: export(request.SerializeToString(), timeout=60), requests)) == {b""}
    ids = ", ".join(f"'{trace_of(request)}'" for request in requests)
    counted = f"SELECT count() AS n, uniqExact(SpanId) AS u FROM otel_traces WHERE TraceId IN ({ids})"
    assert rows(f"{counted} HAVING n >= 2000", 1) == [{"n": 2000, "u": 2000}]


def test_a_collector_that_is_told_to_stop_answers_who_it_has_let_in(tmp_path: Path, start: Any) -> None:
    requests = [spans(5) for _ in range(200)]
    answers: dict[str, bool] = {}

    def send(request: Any) -> None:
        try:
            export(request.SerializeToString(), timeout=60)
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error
            answers[trace_of(request)] = False
        else:
            answers[trace_of(request)] = True

    with start(tmp_path / "store") as running, grpc.insecure_channel(running.grpc) as opened:
        export = opened.unary_unary(EXPORT["traces"])
        with ThreadPoolExecutor(16) as threads:
            sent = [threads.submit(send, request) for request in requests]
            while sum(answers.values()) < 20:
                assert not all(one.done() for one in sent), answers
            running.process.send_signal(signal.SIGTERM)
            for one in sent:
                one.result()
        assert running.process.wait(60) == 0
        assert "Traceback" not in running.log.read_text()
    with start(tmp_path / "store") as again:
        taken = [trace for trace, was_taken in answers.items() if was_taken]
        ids = ", ".join(f"'{trace}'" for trace in taken)
        assert len(taken) >= 20
        query = f"SELECT uniqExact(TraceId), count() FROM otel_traces WHERE TraceId IN ({ids})"
        expected = f"{len(taken)}\t{5 * len(taken)}"
        assert wait_for(again, query, expected) == expected


def wait_for(collector: Any, query: str, expected: str) -> str:
    """The answer, once it is `expected` or time is up."""
    deadline = time.monotonic() + STORED_S
    while (found := str(collector.sql(query))) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_what_was_done_is_in_the_metrics(collector: Any, channel: grpc.Channel, fetch: Any) -> None:
    channel.unary_unary(EXPORT["traces"])(spans(4).SerializeToString())
    with pytest.raises(grpc.RpcError):
        channel.unary_unary(EXPORT["traces"])(b"\xff")
    page = fetch(f"{collector.otlp}/metrics").body.decode()
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[0] != "#"}
    assert found['tracegrad_collector_requests_total{signal="traces",transport="grpc",outcome="stored"}'] >= 1
    assert found['tracegrad_collector_records_total{signal="traces",transport="grpc",outcome="stored"}'] >= 4
    assert found['tracegrad_collector_requests_total{signal="traces",transport="grpc",outcome="malformed"}'] >= 1
    assert found['tracegrad_collector_request_bytes_total{signal="traces",transport="grpc"}'] > 100
    assert found['tracegrad_collector_acknowledge_seconds_count{signal="traces",transport="grpc"}'] >= 1
    assert found["process_resident_memory_bytes"] > 1 << 20
