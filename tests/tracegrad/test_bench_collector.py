"""`tracegrad bench collector`: what it sends is what it says it sends, and a small run finds all that was promised."""

import http.server
import json
import os
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad import names
from tracegrad.bench import machine
from tracegrad.bench.collector_limits import ENGINE
from tracegrad.bench.collector_phases import Kind, Loads, phase
from tracegrad.bench.collector_report import Recovery
from tracegrad.bench.collector_spans import MARKER, Requests, Shape
from tracegrad.bench.collector_under_test import collector
from tracegrad.bench.orders import ordered
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings

PROMISED = {
    *("spans_per_s_per_core", "engine_limit_ratio", "ack_p99_ms", "rss_bytes"),
    *("spans_per_s", "engine_spans_per_s_per_core", "ack_p50_ms", "queryable_p50_ms", "queryable_p99_ms"),
    *("small_spans_per_s_per_core", "tens_spans_per_s_per_core", "spool_peak_bytes", "bytes_per_s"),
    *("recovery_spans_per_s", "spans_lost", "spans_doubled", "disk_limit_ratio", "ratio_to_python_rows"),
}
"""Names that other programs rely on."""
MAYBE_UNKNOWN = {"recovery_spans_per_s"}
"""A small run leaves no backlog to time."""
BEGUN_NS = 1_790_000_000_000_000_000


def spans(body: bytes) -> list[Span]:
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    [scope] = resource.scope_spans
    return list(scope.spans)


def attributes(span: Span) -> dict[str, str]:
    return {one.key: one.value.string_value for one in span.attributes}


def test_a_serial_number_is_the_same_request_everywhere_and_no_other() -> None:
    requests, again = (Requests(Shape(25), BEGUN_NS) for _ in range(2))
    assert requests.request(7) == again.request(7)
    ids = [(span.trace_id, span.span_id) for serial in range(120) for span in spans(requests.request(serial))]
    assert len(set(ids)) == 120 * 25


def test_requests_are_well_formed_and_of_the_size_that_figures_are_given_for() -> None:
    body = Requests(Shape(64), BEGUN_NS).request(3)
    assert len(body) / 64 == pytest.approx(6_000, rel=0.05)
    assert 1.8 < len(body) / len(zlib.compress(body, 1)) < 3, "it compresses as text and numbers do"
    for place, span in enumerate(spans(body)):
        found = attributes(span)
        assert (len(span.trace_id), len(span.span_id), len(span.parent_span_id)) == (16, 8, 8)
        assert span.start_time_unix_nano == BEGUN_NS + (3 * 64 + place) * 30_000
        assert span.end_time_unix_nano > span.start_time_unix_nano
        assert found[names.ROLLOUT_ID] == span.trace_id[:8].hex()
        sampled, logprobs = (json.loads(found[name]) for name in (names.RESPONSE_TOKEN_IDS, names.RESPONSE_LOGPROBS))
        assert len(sampled) == len(logprobs) == 80
        assert all(struct.unpack("<f", struct.pack("<f", one))[0] == one <= 0 for one in logprobs)
        assert len(json.loads(found[names.PROMPT_TOKEN_IDS])) == 300
    assert len(Requests(Shape(64, small=True), BEGUN_NS).request(0)) / 64 == pytest.approx(500, rel=0.1)


def test_a_marker_differs_in_a_name_alone() -> None:
    requests = Requests(Shape(5), BEGUN_NS)
    plain, marked = (spans(requests.request(12, marker=marker)) for marker in (False, True))
    assert marked[0].name == MARKER % 12
    marked[0].name = plain[0].name
    assert marked == plain


def test_loads_are_counted_in_the_store_and_the_engine_gets_the_same(tmp_path: Path) -> None:
    cores = machine.cores()
    with (
        ordered("load generator", "tracegrad.bench.collector_load", (), tmp_path, cores.load) as generator,
        collector(tmp_path, cores.proxy, Settings(), tmp_path / "store") as tested,
    ):
        loads = Loads(generator, lambda _: None)
        full = phase(loads, tested, Kind("full", 20, 6, connections=2), 2)
        paced = loads.measure(tested, Kind("paced", 10, 8, per_s=400, marker_every=4))
        assert tested.rows == 2 * 120 + 80
        assert [run.sent.requests for run in full.runs if run.sent] == [6, 6]
        assert full.median(lambda run: run.per_s) == pytest.approx(sum(120 / run.seconds for run in full.runs) / 2)
        assert paced.sent is not None
        assert len(paced.sent.queryable_ms) == 2
        assert 0 < paced.sent.p50_ms <= paced.sent.p99_ms <= paced.sent.most_ms
        assert paced.seconds >= 0.15, "requests are sent when they are due, not before"
        with pytest.raises(TracegradError, match=r"nowhere failed \d+ of 9 requests"):
            loads.send_only(tested.sql_port, Kind("wrong", 1, 9), "nowhere")
        with pytest.raises(TracegradError, match=r"5 acknowledged spans cannot be queried"):
            tested.wait_for(tested.rows + 5, stalled_s=0.2)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Gives the answers that it was told, and then 200 for ever."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[list[tuple[int, bytes]]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status, body = self.answers.pop() if self.answers else (200, b"")
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def receiver() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_address[1]
        server.shutdown()


def test_what_is_refused_is_sent_again_and_its_time_runs_on(receiver: int, tmp_path: Path) -> None:
    Receiver.answers = [(503, b""), (429, b"")]
    with ordered("load generator", "tracegrad.bench.collector_load", (), tmp_path, ()) as generator:
        loads = Loads(generator, lambda _: None)
        sent = loads.send_only(receiver, Kind("few", 1, 4, connections=1), "receiver").sent
        assert sent is not None
        assert (sent.requests, sent.refused, sent.errors) == (4, 2, 0)
        assert sent.most_ms >= 200
        rejecting = ExportTraceServiceResponse()
        rejecting.partial_success.rejected_spans = 1
        Receiver.answers = [(200, rejecting.SerializeToString())]
        with pytest.raises(TracegradError, match=r"receiver failed 1 of 4 requests: 1 spans were rejected"):
            loads.send_only(receiver, Kind("few", 1, 4, connections=1), "receiver")


def test_what_a_restart_did_is_told_only_where_it_can_be() -> None:
    assert Recovery(30_000, 3.0, 1.0, 0, 0).per_s == 15_000
    assert Recovery(10, 3.0, 1.0, 0, 0).per_s is None
    assert Recovery(30_000, 0.9, 1.0, 0, 0).per_s is None


def test_a_small_run_finds_everything_that_was_promised(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tracegrad", "bench", "collector", "--quick", "--report", str(tmp_path / "report")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path), "COLUMNS": "200"},
    )
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "report" / "bench.json").read_text())["parts"]["collector"]
    found = written["metrics"]
    assert found.keys() >= PROMISED
    assert [name for name, value in found.items() if value is None and name not in MAYBE_UNKNOWN] == []
    for name in PROMISED - {"recovery_spans_per_s", "spool_peak_bytes", "spans_lost", "spans_doubled"}:
        assert found[name] > 0, name
    assert (found["spans_lost"], found["spans_doubled"]) == (0, 0)
    assert found["bytes_per_span"] == pytest.approx(6_000, rel=0.05)
    assert found["ack_p50_ms"] <= found["ack_p99_ms"]
    assert found["ack_p99_ms"] == max(found["ack_p99_ms_requests_of_50"], found["ack_p99_ms_requests_of_512"])
    assert written["goals"] == {
        "spans_per_s_per_core": ">= 30000",
        "engine_limit_ratio": ">= 0.8",
        "ack_p99_ms": "<= 50",
        "rss_bytes": "<= 1.2e9",
        "spans_lost": "<= 0",
        "spans_doubled": "<= 0",
    }
    for shown in (ENGINE, "rows in Python", "file with fsync", "spans_per_s_per_core", "note: load average"):
        assert shown in result.stdout
    assert "show that the bench works, and little else" in result.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["report"], "nothing is left behind"
