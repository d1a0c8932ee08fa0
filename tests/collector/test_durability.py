"""Starting and stopping: nothing acknowledged is lost, and what cannot start says why in one line."""

import signal
import socket
import subprocess
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.pipeline import KEEP_FREE_BYTES


def request(name: str, spans: int) -> ExportTraceServiceRequest:
    made = ExportTraceServiceRequest()
    scope = made.resource_spans.add().scope_spans.add()
    for index in range(spans):
        scope.spans.add(
            name=name, trace_id=name.encode(), span_id=index.to_bytes(8, "big"), start_time_unix_nano=10**18
        )
    return made


def send_until_it_dies(collector: Any, prefix: str, acknowledged: list[str]) -> None:
    """Names of the requests that got a 200 are added to `acknowledged`."""
    for index in range(10_000):
        name = f"{prefix}-{index:05}"
        try:
            if collector.send(request(name, 7)).status == 200:
                acknowledged.append(name)
        except (OSError, urllib.error.URLError):
            return


def test_sigterm_finishes_what_is_in_flight(start: Any, fetch: Any, tmp_path: Path) -> None:
    acknowledged: list[str] = []
    with start(tmp_path / "store") as collector:
        asked: list[bytes] = []
        slow = threading.Thread(target=lambda: asked.append(fetch(collector.clickhouse, b"SELECT sleep(1.5)").body))
        senders = [
            threading.Thread(target=send_until_it_dies, args=(collector, f"s-{sender}", acknowledged))
            for sender in range(4)
        ]
        for thread in (slow, *senders):
            thread.start()
        while len(acknowledged) < 8:
            time.sleep(0.01)
        collector.process.send_signal(signal.SIGTERM)
        for thread in (slow, *senders):
            thread.join()
        assert collector.process.wait(20) == 0
        assert "collector stopped" in collector.log.read_text()
        assert "Traceback" not in collector.log.read_text()
    assert asked == [b"0\n"]
    with start(tmp_path / "store") as collector:
        names = collector.sql("SELECT SpanName FROM otel_traces GROUP BY SpanName HAVING count() = 7").split()
    assert set(acknowledged) <= set(names)


def test_sigint_stops_a_statement_that_would_run_on(start: Any, tmp_path: Path) -> None:
    with start(tmp_path / "store") as collector:
        errors: list[str] = []
        endless = threading.Thread(target=ask_in_vain, args=(collector, errors))
        endless.start()
        while collector.sql("SELECT count() FROM system.processes WHERE query LIKE '%1000000000001%'") != "2":
            time.sleep(0.05)
        collector.process.send_signal(signal.SIGINT)
        assert collector.process.wait(20) == 0
        endless.join()
    assert "QUERY_WAS_CANCELLED" in errors[0]


def ask_in_vain(collector: Any, errors: list[str]) -> None:
    try:
        collector.sql("SELECT count() FROM numbers(1000000000001) WHERE NOT ignore(number)")
    except AssertionError as error:
        errors.append(str(error))


def test_a_second_collector_on_the_same_store_fails_in_one_line(collector: Any, command_line: Any) -> None:
    store = collector.log.with_suffix("")
    done = subprocess.run(command_line(store), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"is open in another collector (process {collector.process.pid} on " in line


@pytest.mark.parametrize("option", ["--otlp-http-port", "--otlp-grpc-port", "--clickhouse-port"])
def test_a_port_in_use_fails_in_one_line_and_touches_nothing(tmp_path: Path, command_line: Any, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = command_line(tmp_path / "store", option, port)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"port {port} on 127.0.0.1 is in use" in line
    assert not (tmp_path / "store").exists()


def test_a_store_that_cannot_be_is_refused_in_one_line(tmp_path: Path, command_line: Any) -> None:
    (tmp_path / "file").write_text("not a directory")
    done = subprocess.run(command_line(tmp_path / "file"), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "cannot keep the store in" in line


def test_the_engine_is_never_at_work_on_a_full_disk(collector: Any) -> None:
    kept = int(collector.sql("SELECT keep_free_space FROM system.disks WHERE name = 'default'"))
    assert 0 < kept < KEEP_FREE_BYTES


def test_a_relative_directory_is_where_the_collector_was_started(tmp_path: Path, command_line: Any) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command_line(Path("kept/store")), cwd=tmp_path, stderr=output)
    try:
        while "collector ready" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        found = {path.name for path in (tmp_path / "kept" / "store").iterdir()}
        assert {"spool", "writer.password"} <= found
        assert "kept" not in found
    finally:
        process.kill()
        process.wait(20)
