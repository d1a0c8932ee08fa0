"""What a second worker process brings.

Two workers need two cores for themselves, and the load needs others. With fewer than four cores they share, and what is
left for the workers limits the gain: by how much is told.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tracegrad.bench import machine
from tracegrad.bench.metric import Metric
from tracegrad.bench.phases import Harness, Measured, Phase, alternate
from tracegrad.bench.plan import Plan
from tracegrad.bench.sidecar_under_test import sidecar

ENOUGH_CORES = 4
ONE, TWO = "one worker", "two workers"


@dataclass(frozen=True)
class Compared:
    """The metrics and what must be said of them."""

    metrics: Sequence[Metric]
    notes: Sequence[str] = ()


def compare(bench: Harness, plan: Plan) -> Compared:
    """Measure a sidecar with one worker and one with two, in turn."""
    total = bench.cores.total
    apart = total >= ENOUGH_CORES and bool(bench.cores.proxy)
    cores = machine.cores(2) if apart else machine.Cores(bench.cores.all, bench.cores.all, total)
    one_core = frozenset(sorted(cores.proxy)[:1]) if apart else cores.proxy
    here = bench.on(cores)
    with (
        sidecar(here, one_core, plan.base, name=ONE) as one,
        sidecar(here, cores.proxy, plan.base, name=TWO, workers=2) as two,
    ):
        title = f"{plan.concurrency} at a time"
        phase = alternate(here, title, [one.target, two.target], plan.repeats, plan.plain(plan.concurrency))
    bench.expected_spans = here.expected_spans
    speedup = phase.compared(TWO, ONE, lambda more, less: more.seen.per_s / less.seen.per_s)
    metrics = [
        Metric(
            "two_workers_speedup", speedup, "calls a second of two workers to those of one", ">= 1.8" if apart else ""
        ),
        Metric("two_workers_cpu_ratio", _cpu_ratio(phase), "CPU time of a call with two workers to that with one"),
    ]
    if apart or not bench.cores.proxy:
        return Compared(metrics)
    limit = phase.compared(TWO, ONE, lambda more, less: _limit(total, more, less))
    metrics.insert(1, Metric("two_workers_speedup_limit", limit, f"what {total} cores allow, with the load on them"))
    most = "what is left" if limit is None else f"{limit:.2f} times"
    said = (
        f"two workers shared {total} core{'s' * (total > 1)} with the load and whatever else ran: a second one cannot "
        f"bring more than {most} here; from {ENOUGH_CORES} cores on each has its own"
    )
    return Compared(metrics, [said])


def _cpu_ratio(phase: Phase) -> float | None:
    return phase.compared(
        TWO, ONE, lambda more, less: more.cpu_ms / less.cpu_ms if more.cpu_ms and less.cpu_ms else None
    )


def _limit(cores: int, more: Measured, less: Measured) -> float | None:
    """Calls a second if all that others leave of the cores went into calls, to those of one worker; at most double."""
    if less.cpu_ms is None or more.others_cores is None:
        return None
    left = cores - more.others_cores
    return min(2.0, max(1.0, left * 1e3 / (less.cpu_ms + less.harness_cpu_ms) / less.seen.per_s))
