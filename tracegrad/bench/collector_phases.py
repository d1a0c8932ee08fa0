"""One load on a collector: from the first byte sent until a query finds every row, and what that cost."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tracegrad.bench import machine
from tracegrad.bench.collector_load import Load, Sent
from tracegrad.bench.collector_under_test import CollectorUnderTest
from tracegrad.bench.orders import Ordered
from tracegrad.errors import TracegradError


@dataclass(frozen=True)
class Kind:
    """A load that is measured. `per_s`: spans, in an open loop; 0: as fast as they are taken."""

    title: str
    spans: int
    requests: int
    connections: int = 8
    per_s: float = 0.0
    small: bool = False
    grpc: bool = False
    marker_every: int = 0


@dataclass(frozen=True)
class Ran:
    """What came of it. None: not known on this system, or not measured of this target."""

    through: str
    spans: int
    size: int
    seconds: float
    cpu_s: float | None
    sent: Sent | None = None
    inserts: int | None = None
    others_cores: float | None = None
    peak_bytes: int | None = None
    """The most memory that it ever had until then."""

    @property
    def per_s(self) -> float:
        """Spans a second, until all could be queried."""
        return self.spans / self.seconds

    @property
    def per_cpu_s(self) -> float | None:
        """Spans per second of CPU time."""
        return self.spans / self.cpu_s if self.cpu_s else None

    @property
    def bytes_per_s(self) -> float:
        """Of requests."""
        return self.size / self.seconds


@dataclass(frozen=True)
class Phase:
    """A load, as often as it was repeated."""

    title: str
    runs: Sequence[Ran]

    def median(self, what: Callable[[Ran], float | None]) -> float | None:
        """Of one figure over the repeats."""
        return median([what(one) for one in self.runs])


def median(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class Loads:
    """Sends loads, whose requests are never the same: each serial number is used once."""

    def __init__(self, generator: Ordered, say: Callable[[str], None]) -> None:
        self._generator = generator
        self._next = 0
        self._begun_ns = time.time_ns()
        self.say = say

    def load(self, kind: Kind, port: int = 0, sql_port: int = 0) -> Load:
        """The next load of a kind."""
        first, self._next = self._next, self._next + kind.requests
        return Load(
            port=port,
            spans=kind.spans,
            small=kind.small,
            first=first,
            count=kind.requests,
            begun_ns=self._begun_ns,
            connections=kind.connections,
            per_s=kind.per_s / kind.spans,
            grpc=kind.grpc,
            sql_port=sql_port,
            marker_every=kind.marker_every,
        )

    def order(self, what: str, value: Any) -> Any:
        """Have the generator do something."""
        return self._generator.order({what: value})

    def send(self, load: Load, through: str) -> Sent:
        """Send a load. Raises TracegradError where a request was not taken."""
        sent = Sent(**self.order("send", asdict(load)))
        if sent.errors:
            raise TracegradError(f"{through} failed {sent.errors} of {load.count} requests: {sent.first_error}")
        return sent

    def measure(self, tested: CollectorUnderTest, kind: Kind, load: Load | None = None) -> Ran:
        """Send a load to a collector and wait until all of it can be queried."""
        load = load or self.load(kind, tested.grpc_port if kind.grpc else tested.otlp_port, tested.sql_port)
        rows, inserts = tested.rows, tested.inserts
        cpu, busy, ours, begun = tested.cpu_s, machine.busy_s(), time.process_time(), time.monotonic()
        sent = self.send(load, "collector")
        ended = tested.wait_for(rows + kind.spans * kind.requests)
        cpu_after, busy_after, spent = tested.cpu_s, machine.busy_s(), time.monotonic() - begun
        used = None if cpu is None or cpu_after is None else cpu_after - cpu
        others = None
        if busy is not None and busy_after is not None and used is not None:
            harness_s = sent.cpu_s + time.process_time() - ours
            others = max(0.0, busy_after - busy - used - harness_s) / spent
        return Ran(
            "collector",
            kind.spans * kind.requests,
            sent.size,
            ended - sent.began,
            used,
            sent,
            tested.inserts - inserts,
            others,
            machine.peak_resident_bytes(tested.pids),
        )

    def send_only(self, port: int, kind: Kind, through: str) -> Ran:
        """The same to what only counts."""
        sent = self.send(self.load(kind, port), through)
        return Ran(through, kind.spans * kind.requests, sent.size, sent.ended - sent.began, None, sent)


def phase(loads: Loads, tested: CollectorUnderTest, kind: Kind, repeats: int) -> Phase:
    """Measure a load so often."""
    runs = []
    for repeat in range(repeats):
        loads.say(kind.title + (f", {repeat + 1} of {repeats}" if repeats > 1 else ""))
        runs.append(loads.measure(tested, kind))
    return Phase(kind.title, runs)
