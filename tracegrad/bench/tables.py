"""The tables that people read beside the metrics."""

from collections.abc import Callable, Sequence

from tracegrad.bench.metric import Table, shown
from tracegrad.bench.peers import PeerMeasured
from tracegrad.bench.phases import DIRECT, Measured, Phase

NOTHING = ""


def phase_table(phases: Sequence[Phase]) -> Table:
    """Everything that was timed."""
    header = (
        "load",
        "through",
        "calls/s",
        "p50 ms",
        "p99 ms",
        "first ms",
        "chunks/s",
        "CPU ms/call",
        "us/chunk",
        "others",
    )
    rows = []
    for phase in phases:
        for place, target in enumerate(phase.runs):

            def cell(what: Callable[[Measured], float | None], phase: Phase = phase, target: str = target) -> str:
                return shown(phase.median(target, what), digits=3)

            stream = phase.load.stream
            rows.append(
                (
                    NOTHING if place else phase.title,
                    target,
                    cell(lambda one: one.seen.per_s),
                    cell(lambda one: one.seen.p50_ms),
                    cell(lambda one: one.seen.p99_ms),
                    cell(lambda one: one.seen.first_p50_ms) if stream else NOTHING,
                    cell(lambda one: one.seen.events_per_s) if stream else NOTHING,
                    NOTHING if target == DIRECT else cell(lambda one: one.cpu_ms),
                    cell(lambda one: one.cpu_us_per_event) if stream and target != DIRECT else NOTHING,
                    cell(lambda one: one.others_cores),
                )
            )
    return Table("What was timed (medians of the repeats)", header, rows)


def peer_table(measured: Sequence[PeerMeasured], sidecar: Phase) -> list[Table]:
    """The peers, and how many times the sidecar's CPU time they take."""
    ours = sidecar.median("sidecar", lambda one: one.cpu_ms)
    rows = []
    for peer in measured:
        if peer.alone is None or peer.many is None:
            rows.append((peer.name, peer.why, *(NOTHING,) * 4))
            continue
        cpu_ms = peer.many.median(peer.name, lambda one: one.cpu_ms)
        added = peer.alone.compared(peer.name, DIRECT, lambda one, base: one.seen.p50_ms - base.seen.p50_ms)
        rows.append(
            (
                peer.name,
                shown(peer.many.median(peer.name, lambda one: one.seen.per_s)),
                shown(added),
                shown(cpu_ms),
                f"{cpu_ms / ours:.1f}x" if cpu_ms and ours else "not known",
                shown(peer.rss_growth),
            )
        )
    header = ("peer", "calls/s", "added p50 ms", "CPU ms/call", "CPU to the sidecar's", "bytes kept/call")
    return [Table("Other proxies in the same run", header, rows)]
