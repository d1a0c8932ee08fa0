"""What this process counts, and `GET /metrics` in Prometheus' text format.

A module declares what it counts as a constant, `INSERTS = Counter("inserts_total", "Inserts.", ("signal", "outcome"))`,
and counts with its label values in that order: `INSERTS.add("traces", "done")`. Invariants: counting is safe in any
thread and never raises in a right program; a counter never goes backwards; every loss has a counter.
"""

import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "tracegrad_collector_"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of histograms, fine around the 50 ms within which an export should be acknowledged."""

Labels = tuple[str, ...]
_families: dict[str, "Family"] = {}


class Family:
    """One metric: its name without the prefix, what it says, and the names of its labels."""

    kind: Literal["counter", "gauge", "histogram"]

    def __init__(self, name: str, text: str, labels: Labels = (), prefix: str = PREFIX) -> None:
        self.name, self.text, self.labels = prefix + name, text, labels
        self._lock = threading.Lock()
        if self.name in _families:
            raise ValueError(f"{self.name} is declared twice")
        _families[self.name] = self

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Suffix of the name, labels, value."""
        raise NotImplementedError

    def _named(self, values: Labels) -> dict[str, str]:
        return dict(zip(self.labels, values, strict=True))


class Counter(Family):
    """Goes up. Without labels it shows 0 before the first; with labels, nothing."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Labels = (), prefix: str = PREFIX) -> None:
        super().__init__(name, text, labels, prefix)
        self._counts: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, *values: str, amount: float = 1) -> None:
        """Count `amount` under the label values, in the order of the declaration."""
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {values}")
        with self._lock:
            self._counts[values] = self._counts.get(values, 0) + amount

    def value(self, *values: str) -> float:
        """What was counted so far."""
        return self._counts.get(values, 0)

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """One for each combination of labels that occurred."""
        for values, count in sorted(self._counts.copy().items()):
            yield "", self._named(values), count


class Histogram(Family):
    """How long things took."""

    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Labels = ()) -> None:
        super().__init__(name, text, labels)
        self._counts: dict[Labels, list[int]] = {}
        self._totals: dict[Labels, float] = {}

    def observe(self, seconds: float, *values: str) -> None:
        """Count one that took `seconds` under the label values."""
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {values}")
        with self._lock:
            counts = self._counts.setdefault(values, [0] * (len(SECONDS) + 1))
            counts[bisect_left(SECONDS, seconds)] += 1
            self._totals[values] = self._totals.get(values, 0.0) + seconds

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Cumulative buckets, sum and count."""
        with self._lock:
            found = [(values, list(counts), self._totals[values]) for values, counts in sorted(self._counts.items())]
        for values, counts, total in found:
            labels = self._named(values)
            for bound, count in zip([*map(str, SECONDS), "+Inf"], accumulate(counts), strict=True):
                yield "_bucket", labels | {"le": bound}, count
            yield "_sum", labels, total
            yield "_count", labels, sum(counts)


class Gauge(Family):
    """Asked when the page is: `QUEUED_BYTES.read(lambda: ..., "traces")`. A later reader replaces an earlier one."""

    kind = "gauge"

    def __init__(self, name: str, text: str, labels: Labels = (), prefix: str = PREFIX) -> None:
        super().__init__(name, text, labels, prefix)
        self._readers: dict[Labels, Callable[[], float | None]] = {}

    def read(self, reader: Callable[[], float | None], *values: str) -> None:
        """Ask `reader`, which answers at once; None shows nothing."""
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {values}")
        self._readers[values] = reader

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """What each reader says now."""
        for values, reader in sorted(self._readers.items(), key=lambda item: item[0]):
            number = reader()
            if number is not None:
                yield "", self._named(values), number


def render() -> str:
    """The page: everything that was declared, by name."""
    return "".join(_lines(family) for _, family in sorted(_families.items()))


def _lines(family: Family) -> str:
    lines = [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"]
    for suffix, labels, number in family.samples():
        pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in labels.items())
        lines.append(f"{family.name}{suffix}{{{pairs}}} {number}" if pairs else f"{family.name}{suffix} {number}")
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def resident_bytes() -> float | None:
    """Resident memory of this process; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return float(pages * resource.getpagesize())


STARTED_S = time.time()
RESIDENT = Gauge("process_resident_memory_bytes", "Resident memory.", prefix="")
RESIDENT.read(resident_bytes)
STARTED = Gauge("process_start_time_seconds", "When the process started, in Unix time.", prefix="")
STARTED.read(lambda: STARTED_S)
CPU = Gauge("process_cpu_seconds", "CPU time that the process has used.", prefix="")
CPU.read(time.process_time)

# Receivers.
REQUESTS = Counter(
    "requests_total",
    "Export requests by what became of them: stored, or the reason why not.",
    ("signal", "transport", "outcome"),
)
RECORDS = Counter(
    "records_total",
    "Spans, log records and data points of requests that were read, by what became of these.",
    ("signal", "transport", "outcome"),
)
BYTES = Counter("request_bytes_total", "Bytes of acknowledged requests, as plain protobuf.", ("signal", "transport"))
ACKNOWLEDGED = Histogram(
    "acknowledge_seconds", "From a request's head to its acknowledgement.", ("signal", "transport")
)
IN_FLIGHT = Gauge("requests_in_flight", "Export requests that have no answer yet.")
HELD_BYTES = Gauge("held_bytes", "Memory that requests take from their first byte to their answer.")
BAD_HTTP = Counter("bad_http_total", "What came to an HTTP port and was no HTTP.")

# Spool and store.
SPOOL_BYTES = Gauge("spool_bytes", "Acknowledged, on disk, and not yet in the store.", ("signal",))
SPOOL_SEGMENTS = Gauge("spool_segments", "Files of the spool.", ("signal",))
SPOOL_OLDEST = Gauge("spool_oldest_seconds", "Age of the oldest request in the spool.", ("signal",))
SPOOL_LOSSES = Gauge(
    "spool_losses",
    "What the spool set aside since the start: torn, damaged, or refused by the store.",
    ("signal", "kind"),
)
INSERTS = Counter("inserts_total", "Inserts by outcome: done or failed.", ("signal", "outcome"))
INSERT_SECONDS = Histogram("insert_seconds", "How long inserts that were done took.", ("signal",))
ROWS = Counter("rows_total", "Rows that the store took.", ("signal",))
RETRIES = Counter("insert_retries_total", "Inserts that were tried again.", ("signal",))
