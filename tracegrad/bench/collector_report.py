"""What the collector's bench found, as metrics, tables and sentences."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tracegrad.bench import machine
from tracegrad.bench.collector_limits import COUNTER
from tracegrad.bench.collector_phases import Phase, Ran, median
from tracegrad.bench.collector_under_test import Peaks
from tracegrad.bench.metric import Metric, Table, shown
from tracegrad.bench.phases import BUSY
from tracegrad.bench.plan import Plan

LEAST_SPANS = 8_192
LEAST_BACKLOG = 1_000
NOTHING = ""


@dataclass(frozen=True)
class Recovery:
    """A start after a kill. `lost`: acknowledged and gone; `doubled`: there twice."""

    backlog: int
    """Spans that were acknowledged and that no query found before the kill."""
    seconds: float
    """Until a query found everything."""
    ordinary_s: float
    """What a start takes without a backlog."""
    lost: int
    doubled: int

    @property
    def per_s(self) -> float | None:
        """Spans a second out of the backlog, start aside; None where it was too small to tell."""
        spent = self.seconds - self.ordinary_s
        return self.backlog / spent if self.backlog >= LEAST_BACKLOG and spent > 0 else None


@dataclass(frozen=True)
class Found:
    """All that was measured."""

    large: Phase
    engine: Phase
    """The engine alone, as often as `large`, each time with the same requests."""
    python: Phase
    small: Phase
    tens: Phase
    few: Phase
    exported: Phase
    grpc: Sequence[Phase]
    """The same as `large`, `few` and `exported`; empty where the collector takes none."""
    markers: Phase
    counted: Ran
    written: Ran
    recovery: Recovery
    peaks: Sequence[Peaks]
    load_average: float = 0.0

    @property
    def collectors(self) -> Sequence[Phase]:
        """Those of the collector, in the order of a report."""
        return (self.large, self.small, self.tens, self.few, self.exported, *self.grpc, self.markers)

    @property
    def others_cores(self) -> float | None:
        """How many cores were busy with something else, in the worst load."""
        return max((one for each in self.collectors if (one := each.median(_others)) is not None), default=None)


def metrics(found: Found) -> list[Metric]:
    """With goals where there are any."""
    large, few, exported = found.large, found.few, found.exported
    per_core, per_s = large.median(_per_core), large.median(_per_s)
    queryable = sorted(ms for run in found.markers.runs if run.sent for ms in run.sent.queryable_ms)
    python = found.python.median(_per_core)
    return [
        Metric("spans_per_s_per_core", per_core, "6 kB spans a second of CPU time, OTLP bytes to rows", ">= 30000"),
        Metric("spans_per_s", per_s, "the same by the clock, on one core"),
        Metric("engine_limit_ratio", _to_engine(found, _per_core), "CPU: one core to the engine alone", ">= 0.8"),
        Metric(
            "engine_spans_per_s_per_core", found.engine.median(_per_core), "the engine alone, same bytes and inserts"
        ),
        Metric("engine_limit_wall_ratio", _to_engine(found, _per_s), "by the clock: collector to the engine alone"),
        Metric("ack_p99_ms", _worst(few.median(_p99), exported.median(_p99)), "5,000 spans/s: worse of both", "<= 50"),
        Metric("ack_p99_ms_requests_of_50", few.median(_p99), "requests of 50 spans: from due to acknowledged"),
        Metric("ack_p99_ms_requests_of_512", exported.median(_p99), "the same, requests of 512 spans"),
        Metric("ack_p50_ms", few.median(_p50), "the same, requests of 50 spans, median"),
        Metric("ack_p50_ms_requests_of_512", exported.median(_p50), "the same, requests of 512 spans, median"),
        Metric("queryable_p50_ms", _at(queryable, 0.5), "from acknowledged to found by a query, median"),
        Metric("queryable_p99_ms", _at(queryable, 0.99), f"the same, 99th percentile of {len(queryable)}"),
        Metric("rss_bytes", _most(one.rss_bytes for one in found.peaks), "most memory ever", "<= 1.2e9"),
        Metric("spool_peak_bytes", _most(one.spool_bytes for one in found.peaks), "most that the spool took"),
        Metric("bytes_per_s", large.median(lambda one: one.bytes_per_s), "OTLP bytes a second, on one core"),
        Metric("bytes_per_span", large.median(lambda one: one.size / one.spans), "OTLP bytes of a span"),
        Metric("small_spans_per_s_per_core", found.small.median(_per_core), "spans of 500 bytes"),
        Metric("tens_spans_per_s_per_core", found.tens.median(_per_core), "6 kB spans in requests of 10"),
        *_grpc(found.grpc),
        Metric("recovery_spans_per_s", found.recovery.per_s, "out of the spool after kill -9, start aside"),
        Metric("recovery_s", found.recovery.seconds, "from start to all found by a query"),
        Metric("spans_lost", found.recovery.lost, "acknowledged and not there after kill -9", "<= 0"),
        Metric("spans_doubled", found.recovery.doubled, "there twice", "<= 0"),
        Metric("disk_bytes_per_s", found.written.bytes_per_s, "the requests into a file, an fsync each"),
        Metric("disk_limit_ratio", per_s / found.written.per_s if per_s else None, "by the clock: collector to that"),
        Metric("counter_spans_per_s", found.counted.per_s, "a server that only counts: what the generator can do"),
        Metric("python_rows_spans_per_s_per_core", python, "the least collector in Python (acknowledges early)"),
        Metric("ratio_to_python_rows", per_core / python if per_core and python else None, "CPU: collector to that"),
        Metric("others_cores", found.others_cores, "cores that were busy with something else"),
        Metric("load_average", found.load_average, "of the machine, before"),
    ]


def _grpc(phases: Sequence[Phase]) -> list[Metric]:
    if not phases:
        return []
    large, few, exported = phases
    return [
        Metric("grpc_spans_per_s_per_core", large.median(_per_core), "6 kB spans over gRPC"),
        Metric("grpc_ack_p99_ms", _worst(few.median(_p99), exported.median(_p99)), "as ack_p99_ms, over gRPC"),
        Metric("grpc_ack_p50_ms", few.median(_p50), "as ack_p50_ms, over gRPC"),
    ]


def _to_engine(found: Found, what: Callable[[Ran], float | None]) -> float | None:
    """The median of the ratios of the repeats."""
    pairs = zip(map(what, found.large.runs), map(what, found.engine.runs), strict=True)
    return median([ours / alone if ours and alone else None for ours, alone in pairs])


def _per_core(one: Ran) -> float | None:
    return one.per_cpu_s


def _per_s(one: Ran) -> float:
    return one.per_s


def _p50(one: Ran) -> float | None:
    return one.sent.p50_ms if one.sent else None


def _p99(one: Ran) -> float | None:
    return one.sent.p99_ms if one.sent else None


def _others(one: Ran) -> float | None:
    return one.others_cores


def _worst(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _at(ordered: Sequence[float], share: float) -> float | None:
    return ordered[round(share * (len(ordered) - 1))] if ordered else None


def tables(found: Found) -> list[Table]:
    """Everything that was timed."""
    header = (
        "load",
        "through",
        "spans/s",
        "spans/CPU s",
        "MB/s",
        "ack p50 ms",
        "p99 ms",
        "most ms",
        "late p99",
        "inserts",
        "peak MB",
        "others",
    )
    rows = []
    for one in found.collectors:
        beside = [found.engine, found.python] if one is found.large else []
        rows += [_row(each, place) for place, each in enumerate((one, *beside))]
        if one is found.large:
            rows += [_row(Phase("", [run]), 1) for run in (found.counted, found.written)]
    return [Table("What was timed (medians of the repeats)", header, rows)]


def _row(one: Phase, place: int) -> tuple[str, ...]:
    def cell(what: Callable[[Ran], float | None]) -> str:
        value = one.median(what)
        return NOTHING if value is None else shown(value, digits=3)

    return (
        NOTHING if place else one.title,
        one.runs[0].through,
        cell(_per_s),
        cell(_per_core),
        cell(lambda run: run.bytes_per_s / 1e6),
        cell(_p50),
        cell(_p99),
        cell(lambda run: run.sent.most_ms if run.sent else None),
        cell(lambda run: run.sent.late_p99_ms if run.sent else None),
        cell(lambda run: run.inserts),
        cell(lambda run: run.peak_bytes / 1e6 if run.peak_bytes else None),
        cell(_others),
    )


def notes(plan: Plan, cores: machine.Cores, found: Found) -> list[str]:
    """What must be said of the figures."""
    said = [f"load average {found.load_average:.2f} before; {cores.total} cores, one of them the collector's"]
    if plan.spans < LEAST_SPANS:
        said.append(f"loads of less than {LEAST_SPANS:,} spans show that the bench works, and little else")
    said += machine.shortcomings(cores, "collector")
    if found.counted.per_s < 2 * (found.large.median(_per_s) or 0.0):
        said.append(f"the load generator sends {found.counted.per_s:,.0f} spans/s to a {COUNTER}: too few to be sure")
    if found.recovery.per_s is None:
        said.append(f"{found.recovery.backlog:,} spans were waiting when it was killed: too few to time their recovery")
    refused = sum(run.sent.refused for one in found.collectors for run in one.runs if run.sent)
    if refused:
        said.append(f"{refused:,} requests were refused and sent again: the collector was full")
    if (others := found.others_cores) is not None and others > BUSY:
        said.append(
            f"{others:.2f} cores were busy with something else: rates and latencies are not only the collector's; "
            "figures per core and ratios are sound"
        )
    return said
