"""`tracegrad bench sidecar`: what the sidecar adds to a call, in time, CPU and memory.

Straight to the stand-in, through the least aiohttp proxy, and through the sidecar, in turn. Proxies are on one core,
stand-in and load generator on others. Where a name does not begin with `rollout_`, calls are anonymous: nothing
connects them, so that no earlier one is looked up. `*_per_core` figures are calls or chunks per second of CPU time;
other rates are what a client sees from a proxy that has one core.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tracegrad.bench import growth, machine, peers, processes, rollouts, workers
from tracegrad.bench.metric import Metric, Outcome
from tracegrad.bench.phases import BUSY, DIRECT, Harness, Measured, Phase, Target, alternate, harness
from tracegrad.bench.plan import FIRST_CHUNK_DELAY_S, PACE_S, Plan
from tracegrad.bench.sidecar_under_test import SidecarUnderTest, sidecar
from tracegrad.bench.tables import peer_table, phase_table

MINIMAL, SIDECAR = "minimal", "sidecar"
LEAST_S = 1.0


@dataclass(frozen=True)
class _Phases:
    """What was measured of all three."""

    alone: Phase
    many: Phase
    first_chunk: Phase
    streams: Phase
    full: Phase

    @property
    def all(self) -> tuple[Phase, ...]:
        """In the order of a report."""
        return (self.alone, self.many, self.first_chunk, self.streams, self.full)


def run(plan: Plan) -> Outcome:
    """Measure everything. Raises TracegradError; whatever was started is stopped."""
    peers.check(plan.peers)
    with tempfile.TemporaryDirectory(prefix="tracegrad-bench-") as place:
        directory, cores = Path(place), machine.cores()
        with harness(directory, cores, plan.say) as bench:
            with _minimal(bench) as minimal, sidecar(bench, cores.proxy, plan.base) as tested:
                phases = _phases(bench, plan, minimal, tested.target)
                more = _memory(bench, plan, tested)
                played = rollouts.measure(bench, plan, tested)
                more += [*played.metrics, *_growth(bench, tested)]
                share, untrainable = tested.trainable()
            two = workers.compare(bench, plan)
            spans = bench.wait_for_spans()
            measured = peers.measure(bench, plan)
        metrics = [
            *_metrics(phases),
            *more,
            *two.metrics,
            Metric("trainable_share", share, "answers proved exact, so that they may train", ">= 1"),
            Metric("spans_lost", max(bench.expected_spans - spans, 0), "spans that did not arrive", "<= 0"),
            Metric("spans_delivered", spans, "spans that arrived over OTLP"),
            *peers.metrics(measured),
        ]
    notes = [*_notes(plan, cores, phases), *two.notes]
    if untrainable:
        notes.append(f"not trainable: {', '.join(f'{count:g} {reason}' for reason, count in untrainable.items())}")
    details = [phase_table((*phases.all, *played.phases)), *peer_table(measured, phases.many)]
    return Outcome(metrics, details, notes)


@contextlib.contextmanager
def _minimal(bench: Harness) -> Iterator[Target]:
    with processes.our_own("minimal_proxy", (bench.url,), bench.directory, bench.cores.proxy) as (running, port):
        yield Target(MINIMAL, port, running)


def _phases(bench: Harness, plan: Plan, minimal: Target, tested: Target) -> _Phases:
    everybody = [bench.direct, minimal, tested]
    alone = alternate(bench, "one call at a time", everybody, plan.repeats, plan.plain(1))
    many = alternate(bench, f"{plan.concurrency} at a time", everybody, plan.repeats, plan.plain(plan.concurrency))
    bench.pace(FIRST_CHUNK_DELAY_S, plan.first_chunk_tokens)
    first = alternate(bench, "first chunk of short streams", everybody, plan.repeats, plan.short_streams)
    bench.pace(PACE_S, plan.stream_tokens)
    title = f"streams paced at {PACE_S * 1e3:g} ms, "
    streams = alternate(
        bench, f"{title}{plan.streams} at a time", [minimal, tested], plan.repeats, plan.paced(plan.streams)
    )
    full = alternate(
        bench,
        f"{title}{plan.full_streams} at a time",
        [bench.direct, minimal, tested],
        1,
        plan.paced(plan.full_streams),
    )
    return _Phases(alone, many, first, streams, full)


def _memory(bench: Harness, plan: Plan, tested: SidecarUnderTest) -> list[Metric]:
    """Growth over many calls, once everything that fills up has been filled."""
    assert tested.target.running is not None  # noqa: S101 - it was started
    alternate(bench, "memory, warming up", [tested.target], 1, plan.counted(plan.warm_calls))
    before = rollouts.resident(bench, tested)
    alternate(bench, f"memory over {plan.calls:,} calls", [tested.target], 1, plan.counted(plan.calls))
    after = rollouts.resident(bench, tested)
    growing = None if before is None or after is None else (after - before) / plan.calls
    return [
        Metric("rss_growth_bytes_per_call", growing, f"memory kept of anonymous calls, over {plan.calls:,}", "<= 100"),
        Metric("rss_bytes", after, "memory of the sidecar after that"),
    ]


def _growth(bench: Harness, tested: SidecarUnderTest) -> list[Metric]:
    bench.say("bytes of rollouts of 16 and 32 turns")
    ratio, longer = growth.ratio(bench, tested.target)
    return [
        Metric("bytes_ratio_32_to_16_turns", ratio, "bytes of a rollout of 32 turns to one of 16", "<= 2.2"),
        Metric("bytes_of_32_turns", longer, "bytes delivered of a rollout of 32 turns"),
    ]


def _metrics(phases: _Phases) -> list[Metric]:
    alone, many, streams = phases.alone, phases.many, phases.streams

    def added(how: str, phase: Phase = alone) -> float | None:
        return phase.compared(SIDECAR, DIRECT, lambda one, base: getattr(one.seen, how) - getattr(base.seen, how))

    return [
        Metric("added_latency_p50_ms", added("p50_ms"), "anonymous calls: added to one at a time, median", "<= 0.6"),
        Metric("added_latency_p99_ms", added("p99_ms"), "the same, 99th percentile", "<= 1.5"),
        Metric("added_latency_p99_best_ms", _best_p99(alone), "the same, in the quietest repeat"),
        Metric("requests_per_s", many.median(SIDECAR, _rate), "anonymous calls a second on one core", ">= 1500"),
        Metric("requests_per_s_per_core", many.median(SIDECAR, _per_core), "calls per second of CPU time", ">= 1500"),
        Metric("minimal_requests_per_s_per_core", many.median(MINIMAL, _per_core), "the same, the least aiohttp proxy"),
        Metric("cpu_ms_per_call", many.median(SIDECAR, _cpu), "CPU time of an anonymous call"),
        Metric("minimal_cpu_ms_per_call", many.median(MINIMAL, _cpu), "the same, the least aiohttp proxy"),
        Metric("cpu_ratio_to_minimal_proxy", many.compared(SIDECAR, MINIMAL, _cpu_ratio), "one to the other", "<= 1.7"),
        Metric(
            "stream_chunks_per_s_per_core",
            streams.median(SIDECAR, _chunks_per_core),
            f"chunks of {streams.load.concurrency} paced streams per second of CPU time",
            ">= 15000",
        ),
        Metric(
            "stream_chunks_per_s",
            phases.full.median(SIDECAR, _chunks),
            f"chunks a second of {phases.full.load.concurrency} paced streams on one core",
        ),
        Metric("stream_chunks_per_s_direct", phases.full.median(DIRECT, _chunks), "the same without a proxy"),
        Metric("added_first_chunk_ms", added("first_p50_ms", phases.first_chunk), "added to the first chunk", "<= 1.5"),
        Metric("added_first_chunk_p99_ms", added("first_p99_ms", phases.first_chunk), "the same, 99th percentile"),
        Metric("others_cores", _others(phases), "cores that were busy with something else"),
    ]


def _rate(one: Measured) -> float:
    return one.seen.per_s


def _cpu(one: Measured) -> float | None:
    return one.cpu_ms


def _per_core(one: Measured) -> float | None:
    return 1e3 / one.cpu_ms if one.cpu_ms else None


def _chunks(one: Measured) -> float:
    return one.seen.events_per_s


def _chunks_per_core(one: Measured) -> float | None:
    return 1e6 / one.cpu_us_per_event if one.cpu_us_per_event else None


def _cpu_ratio(one: Measured, base: Measured) -> float | None:
    return one.cpu_ms / base.cpu_ms if one.cpu_ms and base.cpu_ms else None


def _best_p99(alone: Phase) -> float:
    """What is added in the repeat in which least was."""
    pairs = zip(alone.runs[SIDECAR], alone.runs[DIRECT], strict=True)
    return min(one.seen.p99_ms - base.seen.p99_ms for one, base in pairs)


def _others(phases: _Phases) -> float | None:
    found = [
        value for phase in phases.all if (value := phase.median(SIDECAR, lambda one: one.others_cores)) is not None
    ]
    return max(found, default=None)


def _notes(plan: Plan, cores: machine.Cores, phases: _Phases) -> list[str]:
    notes = []
    if plan.seconds < LEAST_S:
        notes.append(f"loads of less than {LEAST_S:g} s show that the bench works, and little else: leave out --quick")
    notes += machine.shortcomings(cores, "proxy")
    others = _others(phases)
    if others is not None and others > BUSY:
        notes.append(
            f"{others:.2f} cores were busy with something else: rates and 99th percentiles are not only the sidecar's; "
            "figures per core and ratios are sound"
        )
    return notes
