"""A collector whose store is a ClickHouse server: here, another collector, and at times one that fails in between."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clickhouse_between import as_store, running_between, writer
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SOON_S = 30


def spans(name: str, number: int = 1) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for index in range(number):
        span = scope.spans.add(name=name, start_time_unix_nano=time.time_ns(), end_time_unix_nano=time.time_ns())
        span.trace_id, span.span_id = os.urandom(16), index.to_bytes(8, "big")
    return request


def eventually(server: Any, query: str, expected: str) -> None:
    """The server's answer becomes `expected`, soon, and then stays so."""
    deadline = time.monotonic() + SOON_S
    while (answer := server.sql(query)) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert answer == expected


def test_all_signals_become_rows_of_the_server(
    collector: Any, start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "server-mode-all"
    logs, metrics = ExportLogsServiceRequest(), ExportMetricsServiceRequest()
    record = logs.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=time.time_ns())
    record.body.string_value = name
    metric = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    metric.gauge.data_points.add(time_unix_nano=time.time_ns(), as_double=1.5)
    address = as_store(collector, "/otel?compression=lz4")
    monkeypatch.setenv("TRACEGRAD_COLLECTOR_STORE", address)  # not an option: it may hold a password
    with start(tmp_path / "data") as sender:
        assert sender.clickhouse == "-"  # who wants SQL asks the server
        assert sender.send(spans(name, 3)).status == 200
        assert sender.send(logs).status == 200
        body = metrics.SerializeToString()
        posted = urllib.request.Request(sender.otlp + "/v1/metrics", body, {"Content-Type": "application/x-protobuf"})
        with urllib.request.urlopen(posted, timeout=20) as answer:
            assert answer.status == 200
        eventually(collector, f"SELECT count() FROM otel_traces WHERE SpanName = '{name}'", "3")
        eventually(collector, f"SELECT count() FROM otel_logs WHERE Body = '{name}'", "1")
        eventually(collector, f"SELECT sum(Value) FROM otel_metrics_gauge WHERE MetricName = '{name}'", "1.5")


@pytest.mark.parametrize("behaviour", ["lost", "cut", "500 Code: 243. DB::Exception: Not enough space", "502 "])
def test_what_got_no_good_answer_is_there_once(
    collector: Any, start: Callable[..., Any], tmp_path: Path, behaviour: str
) -> None:
    name = f"server-mode-{behaviour[:4]}"
    with (
        running_between(collector.clickhouse, writer(collector)) as between,
        start(tmp_path / "data", "--store", f"clickhouse://127.0.0.1:{between.server_port}") as sender,
    ):
        between.behaviours = [behaviour, behaviour]
        assert sender.send(spans(name, 5)).status == 200
        deadline = time.monotonic() + SOON_S
        while len(between.inserts) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        eventually(collector, f"SELECT count() FROM otel_traces WHERE SpanName = '{name}'", "5")
        sender.process.terminate()
        assert sender.process.wait(SOON_S) == 0
        assert len(between.inserts) == 3
    assert collector.sql(f"SELECT count(), uniqExact(TraceId) FROM otel_traces WHERE SpanName = '{name}'") == "5\t5"


def test_a_collector_starts_without_its_server_and_delivers_when_it_is_there(
    collector: Any, start: Callable[..., Any], tmp_path: Path, free_port: Callable[[], int]
) -> None:
    name, port = "server-mode-away", free_port()
    with start(tmp_path / "data", "--store", f"clickhouse://127.0.0.1:{port}") as sender:
        assert sender.send(spans(name, 2)).status == 200
        assert "store not ready" in sender.log.read_text()
        sender.process.kill()
        sender.process.wait(SOON_S)
    with start(tmp_path / "data", "--store", f"clickhouse://127.0.0.1:{port}") as sender:
        assert sender.send(spans(name, 1)).status == 200
        with running_between(collector.clickhouse, writer(collector), port):
            eventually(collector, f"SELECT count() FROM otel_traces WHERE SpanName = '{name}'", "3")
        sender.process.terminate()
        assert sender.process.wait(SOON_S) == 0


def refused(*options: str, **environ: str) -> str:
    """What a collector that does not start says."""
    ports = ("--otlp-http-port", "0", "--otlp-grpc-port", "0", "--clickhouse-port", "0")
    ended = subprocess.run(
        [sys.executable, "-m", "tracegrad", "collector", *ports, *options],
        env=os.environ | environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    return ended.stderr.splitlines()[-1]


def test_a_set_up_that_no_waiting_mends_ends_the_start(collector: Any, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    with running_between(collector.clickhouse, writer(collector)) as between:
        between.selects = ["403 Code: 516. DB::Exception: user: Authentication failed"]
        address = f"clickhouse://user@127.0.0.1:{between.server_port}"
        told = refused(*data, "--store", address, TRACEGRAD_COLLECTOR_STORE_PASSWORD="hush-hush")
        assert "Authentication failed" in told
        assert "hush" not in told
    told = refused(*data, "--cluster", "main", TRACEGRAD_COLLECTOR_STORE=as_store(collector))
    assert "the server knows no cluster 'main'" in told
    assert "is for ClickHouse servers" in refused(*data, "--cluster", "main")
    assert "password" in refused(*data, "--store", "clickhouse://user:hush@h")


def test_without_create_schema_the_schema_is_asked_for(tmp_path: Path) -> None:
    told = refused("--data", str(tmp_path / "data"), TRACEGRAD_COLLECTOR_CREATE_SCHEMA="0")
    assert "create_schema is false: apply what `tracegrad collector --print-schema` prints" in told


def test_people_ask_the_server(collector: Any) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TRACEGRAD_CLICKHOUSE"}
    environ["TRACEGRAD_COLLECTOR_STORE"] = as_store(collector)
    for arguments, said in ((("sql", "SELECT 40 + 2", "--format", "CSV"), "42"), (("doctor",), "store (SQL)")):
        asked = subprocess.run(
            [sys.executable, "-m", "tracegrad", *arguments],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert said in asked.stdout, asked
