"""What the collector is measured against, in the same run and with the same requests.

The engine's own parser with nothing around it; the least collector in Python; a file with an fsync for each request;
and a server that only counts, which tells what the load generator can do.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from tracegrad.bench import machine, processes
from tracegrad.bench.collector_load import Load
from tracegrad.bench.collector_phases import Kind, Loads, Ran
from tracegrad.bench.collector_under_test import STALLED_S, CollectorUnderTest
from tracegrad.bench.orders import Ordered, ordered
from tracegrad.bench.processes import Running
from tracegrad.errors import TracegradError

ENGINE, PYTHON, COUNTER, DISK = "engine alone", "rows in Python", "counter", "file with fsync"
LOOK_S = 0.01


@dataclass(frozen=True)
class Engine:
    """The engine alone, in a process of its own."""

    process: Ordered
    file: Path

    def measure(self, loads: Loads, load: Load, inserts: int) -> Ran:
        """Insert the very requests of a load, as many at once as the collector did."""
        loads.order("write", {"load": asdict(load), "path": str(self.file)})
        try:
            size = self.file.stat().st_size
            requests = max(1, round(load.count / max(1, inserts)))
            found = self.process.order({"path": str(self.file), "requests": requests})
        finally:
            self.file.unlink(missing_ok=True)
        if found["rows"] != load.count * load.spans:
            raise TracegradError(f"the engine alone made {found['rows']} rows of {load.count * load.spans} spans")
        return Ran(ENGINE, found["rows"], size, found["seconds"], found["cpu_s"], inserts=found["inserts"])


@contextlib.contextmanager
def engine(directory: Path, cores: machine.Cores) -> Iterator[Engine]:
    """One with a store of its own, while the block runs."""
    arguments = (str(directory / "engine-store"),)
    with ordered(ENGINE, "collector.engine_alone", arguments, directory, cores.proxy) as process:
        yield Engine(process, directory / "requests")


@dataclass(frozen=True)
class RowsInPython:
    """The least collector in Python."""

    running: Running
    port: int

    def measure(self, loads: Loads, kind: Kind) -> Ran:
        """Send it a load and wait until all of it is inserted."""
        rows, cpu = self._rows(), machine.cpu_s(self.running.pids)
        sent = loads.send(loads.load(kind, self.port), PYTHON)
        wanted, deadline = rows + kind.spans * kind.requests, time.monotonic() + STALLED_S
        while self._rows() < wanted:
            self.running.check()
            if time.monotonic() > deadline:
                raise self.running.failure("did not insert everything")
            time.sleep(LOOK_S)
        seconds, after = time.monotonic() - sent.began, machine.cpu_s(self.running.pids)
        used = None if cpu is None or after is None else after - cpu
        return Ran(PYTHON, kind.spans * kind.requests, sent.size, seconds, used, sent)

    def _rows(self) -> int:
        return int(processes.ask(self.port, "GET", "/rows")[1])


@contextlib.contextmanager
def rows_in_python(directory: Path, cores: machine.Cores, tested: CollectorUnderTest) -> Iterator[RowsInPython]:
    """One with the table of the collector's, while the block runs."""
    status, answer = processes.ask(
        tested.sql_port, "POST", "/", b"SHOW CREATE TABLE otel.otel_traces FORMAT JSONEachRow"
    )
    if status != 200:
        raise TracegradError(f"the collector answered a query with status {status}: {answer[:300]!r}")
    (ddl,) = orjson.loads(answer).values()
    arguments = (str(directory / "python-store"), " ".join(ddl.split()))
    with processes.our_own("row_collector", arguments, directory, cores.proxy) as (running, port):
        yield RowsInPython(running, port)


def counted(directory: Path, cores: machine.Cores, loads: Loads, kind: Kind) -> Ran:
    """The load sent to what only counts spans."""
    with processes.our_own("stand_in", (), directory, cores.proxy) as (_, port):
        return loads.send_only(port, kind, COUNTER)


def written(directory: Path, loads: Loads, kind: Kind) -> Ran:
    """The load's requests written to a file on the disk of the store, each with an fsync."""
    file = directory / "fsynced"
    try:
        found = loads.order("disk", {"load": asdict(loads.load(kind)), "path": str(file)})
    finally:
        file.unlink(missing_ok=True)
    return Ran(DISK, kind.spans * kind.requests, found["size"], found["seconds"], None)
