"""One phase of a bench, a load on one target, with what it cost every process; and several targets in turn.

Targets alternate within one run, so that whatever else the machine does meets all of them alike. CPU time moves far
less with that than rates do, and is what ratios are made of.
"""

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from tracegrad.bench import machine, payload, processes
from tracegrad.bench.load import Load, Seen
from tracegrad.bench.processes import Running
from tracegrad.bench.stand_in import Counts
from tracegrad.errors import TracegradError

DIRECT = "direct"
BUSY = 0.1
"""With more cores than this busy with other things, rates and p99 are not only the target's."""


@dataclass(frozen=True)
class Target:
    """Where a load goes. `running` None: straight to the stand-in."""

    name: str
    port: int
    running: Running | None = None
    path: str = "/v1/chat/completions"
    model: str = payload.MODEL
    own: bool = False
    """Its answers must show no token ids, and its streams every event."""


@dataclass(frozen=True)
class Measured:
    """One phase. None: not known on this system."""

    seen: Seen
    cpu_ms: float | None
    """Of the target's processes, per call."""
    harness_cpu_ms: float
    """Of stand-in and load generator, per call."""
    others_cores: float | None
    """How many cores were busy with something else."""

    @property
    def cpu_us_per_event(self) -> float | None:
        """Of the target's processes, per event of a stream."""
        if self.cpu_ms is None or not self.seen.events:
            return None
        return self.cpu_ms * 1e3 * self.seen.calls / self.seen.events


@dataclass(frozen=True)
class Phase:
    """A load, measured on each target as often as it was repeated."""

    title: str
    load: Load
    runs: Mapping[str, Sequence[Measured]]

    def median(self, target: str, what: Callable[[Measured], float | None]) -> float | None:
        """Of one figure over the repeats."""
        values = [value for value in map(what, self.runs[target]) if value is not None]
        return statistics.median(values) if values else None

    def compared(self, target: str, base: str, how: Callable[[Measured, Measured], float | None]) -> float | None:
        """The median over the repeats of one figure that compares two targets."""
        pairs = zip(self.runs[target], self.runs[base], strict=True)
        values = [value for value in (how(*pair) for pair in pairs) if value is not None]
        return statistics.median(values) if values else None


class Harness:
    """The stand-in, and the cores. `expected_spans` counts what recording targets were asked."""

    def __init__(self, directory: Path, cores: machine.Cores, port: int, say: Callable[[str], None]) -> None:
        self.directory = directory
        self.cores = cores
        self.port = port
        self.expected_spans = 0
        self.say = say

    def on(self, cores: machine.Cores) -> "Harness":
        """The same with its load on other cores."""
        other = Harness(self.directory, cores, self.port, self.say)
        other.expected_spans = self.expected_spans
        return other

    @property
    def direct(self) -> Target:
        """No proxy at all."""
        return Target(DIRECT, self.port)

    @property
    def url(self) -> str:
        """The stand-in's."""
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> Counts:
        """What the stand-in has seen."""
        return Counts(**orjson.loads(processes.ask(self.port, "GET", "/bench/stats")[1]))

    def pace(self, delay_s: float, tokens: int) -> None:
        """How the stand-in streams from now on."""
        processes.tell(self.port, "/bench/pace", {"delay_s": delay_s, "tokens": tokens})

    def wait_for_spans(self, limit_s: float = 30.0) -> int:
        """Until every call's span has arrived, or `limit_s` has passed; how many there are."""
        deadline = time.monotonic() + limit_s
        while (spans := self.counts().spans) < self.expected_spans and time.monotonic() < deadline:
            time.sleep(processes.POLL_S)
        return spans

    def measure(self, target: Target, load: Load) -> Measured:
        """Run one load. Raises TracegradError where the target does not answer as it must."""
        pids = target.running.pids if target.running else []
        before, begun, busy, cpu = self.counts(), time.monotonic(), machine.busy_s(), machine.cpu_s(pids)
        seen = _run(load, self.directory, self.cores)
        cpu_after, busy_after, spent = machine.cpu_s(pids), machine.busy_s(), time.monotonic() - begun
        harness_s = self.counts().cpu_s - before.cpu_s + seen.cpu_s
        if target.own:
            self.expected_spans += seen.all_calls
        _check(target, load, seen)
        calls = max(seen.all_calls, 1)
        used = None if cpu is None or cpu_after is None else cpu_after - cpu
        others = None
        if busy is not None and busy_after is not None and used is not None:
            others = max(0.0, busy_after - busy - used - harness_s) / spent
        return Measured(seen, None if used is None else used * 1e3 / calls, harness_s * 1e3 / calls, others)


def _run(load: Load, directory: Path, cores: machine.Cores) -> Seen:
    argv = [sys.executable, "-m", "tracegrad.bench.load"]
    with processes.started("load generator", argv, directory, cores.load, talks=True) as running:
        limit_s = 120 + load.seconds + load.calls
        try:
            output, _ = running.process.communicate(orjson.dumps(asdict(load)), timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise running.failure(f"did not end within {limit_s:.0f} s") from error
        if running.process.returncode:
            raise running.failure(f"ended with status {running.process.returncode}")
    return Seen(**orjson.loads(output))


def _check(target: Target, load: Load, seen: Seen) -> None:
    if seen.errors:
        if target.running is not None:
            target.running.check()
        raise TracegradError(f"{target.name} failed {seen.errors} of {seen.all_calls} calls: {seen.first_error}")
    if not target.own:
        return
    if seen.leaks:
        raise TracegradError(f"{target.name} showed token ids that nobody asked for, in {seen.leaks} answers")
    if load.stream and seen.unended:
        raise TracegradError(f"{target.name} gave {seen.unended} streams no end")


@contextlib.contextmanager
def harness(directory: Path, cores: machine.Cores, say: Callable[[str], None]) -> Iterator[Harness]:
    """A stand-in while the block runs. `say` is told what is going on."""
    with processes.our_own("stand_in", (), directory, cores.load) as (_, port):
        yield Harness(directory, cores, port, say)


def alternate(harness: Harness, title: str, targets: Sequence[Target], repeats: int, load: Mapping[str, Any]) -> Phase:
    """Measure the same load on each target, in turn, so often."""
    runs: dict[str, list[Measured]] = {target.name: [] for target in targets}
    for repeat in range(repeats):
        for target in targets:
            harness.say(f"{title}: {target.name}" + (f", {repeat + 1} of {repeats}" if repeats > 1 else ""))
            one = Load(port=target.port, path=target.path, model=target.model, **load)
            runs[target.name].append(harness.measure(target, one))
    return Phase(title, Load(port=0, **load), runs)
