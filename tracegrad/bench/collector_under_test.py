"""The collector that is measured: the command as users run it, on a fresh store, with nothing switched off."""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tracegrad.bench import machine, processes
from tracegrad.bench.processes import Running
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings

OURS = ("host", "data", "spool", "cluster", "create_schema")
OUR_KINDS = ("port", "store", "token", "tls", "password", "user", "key")
"""Values of `[collector]` that the bench chooses, or that would keep it out; of kinds, by a part of their names."""
ROWS = "SELECT count() FROM otel.otel_traces"
BLOCKS = "SELECT max(max_block_number) FROM system.parts WHERE database = 'otel' AND table = 'otel_traces'"
IDS = "SELECT uniqExact(TraceId, SpanId) FROM otel.otel_traces"
LOOK_S, MOST_LOOK_S = 0.01, 0.1
STALLED_S = 60.0


@dataclass
class Peaks:
    """The most that was seen. None: not known on this system."""

    rss_bytes: int | None = None
    spool_bytes: int = 0


@dataclass(frozen=True)
class CollectorUnderTest:
    """One that answers."""

    running: Running
    otlp_port: int
    grpc_port: int
    sql_port: int
    data: Path
    pids: tuple[int, ...]
    ready_s: float
    """How long it took to start."""
    peaks: Peaks = field(default_factory=Peaks)

    @property
    def has_grpc(self) -> bool:
        """Whether somebody listens for gRPC."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.grpc_port)) == 0

    def ask(self, sql: str) -> int:
        """The number that a query gives. Raises TracegradError."""
        status, answer = processes.ask(self.sql_port, "POST", "/", sql.encode())
        if status != 200:
            raise TracegradError(f"the collector answered a query with status {status}: {answer[:300]!r}")
        return int(answer or 0)

    @property
    def rows(self) -> int:
        """Spans that a query finds."""
        return self.ask(ROWS)

    @property
    def inserts(self) -> int:
        """How many blocks of rows were ever written: each insert writes one."""
        return self.ask(BLOCKS)

    @property
    def cpu_s(self) -> float | None:
        """What it has computed, merges in the background included."""
        return machine.cpu_s(self.pids)

    def wait_for(self, rows: int, stalled_s: float = STALLED_S) -> float:
        """When so many rows were there, on the monotonic clock. Raises TracegradError when no more come.

        Each look costs the collector time, so that there are few until the end is near.
        """
        first = seen = self.rows
        begun = changed = time.monotonic()
        while (found := self.rows) < rows:
            self.running.check()
            now = time.monotonic()
            if found != seen:
                seen, changed = found, now
            elif now - changed > stalled_s:
                raise TracegradError(f"{rows - found} acknowledged spans cannot be queried, {stalled_s:.0f} s later")
            left_s = (rows - found) * (now - begun) / max(1, found - first)
            time.sleep(min(MOST_LOOK_S, max(LOOK_S, left_s / 2)))
        return time.monotonic()

    def look(self) -> None:
        """Note the most that it ever took."""
        peak = machine.peak_resident_bytes(self.pids)
        if peak is not None:
            self.peaks.rss_bytes = max(peak, self.peaks.rss_bytes or 0)
        self.peaks.spool_bytes = max(self.peaks.spool_bytes, _spooled(self.data))

    def kill(self) -> None:
        """As a crash does: nothing is finished."""
        self.running.process.kill()
        self.running.process.wait()


@contextlib.contextmanager
def collector(
    directory: Path, cores: Collection[int], base: Settings, data: Path, *, name: str = "collector"
) -> Iterator[CollectorUnderTest]:
    """One while the block runs. `base`: whose `[collector]` it takes, but for where things are and who may come."""
    otlp, grpc, sql = processes.free_ports(3)
    config = directory / f"{name.replace(' ', '-')}.toml"
    ports = {"otlp_http_port": otlp, "otlp_grpc_port": grpc, "clickhouse_port": sql}
    config.write_text(_toml(base, {"data": str(data), **ports}))
    argv = [sys.executable, "-m", "tracegrad", "collector", "--config", str(config)]
    begun = time.monotonic()
    with processes.started(name, argv, directory, cores) as running:
        processes.wait_for(running, otlp, "/healthz")
        ready_s = time.monotonic() - begun
        tested = CollectorUnderTest(running, otlp, grpc, sql, data, tuple(running.pids), ready_s)
        with _watched(tested):
            yield tested


def _toml(base: Settings, chosen: Mapping[str, Any]) -> str:
    given = base.collector.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    ours = {key for key in given if key in OURS or any(kind in key for kind in OUR_KINDS)}
    kept = {key: value for key, value in given.items() if key not in ours}
    # For numbers, truths and plain texts TOML is written as JSON is.
    lines = [f"{key} = {orjson.dumps(value).decode()}" for key, value in {**kept, **chosen}.items()]
    return "\n".join(["[collector]", *lines, ""])


@contextlib.contextmanager
def _watched(tested: CollectorUnderTest, every_s: float = 0.1) -> Iterator[None]:
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            tested.look()

    watcher = threading.Thread(target=watch, name="bench-watch")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _spooled(data: Path) -> int:
    """What the spool's files take at the moment."""
    size = 0
    for place in data.glob("*spool*"):
        for file in place.rglob("*"):
            with contextlib.suppress(OSError):  # delivered, and so deleted, meanwhile
                size += file.stat().st_size if file.is_file() else 0
    return size
