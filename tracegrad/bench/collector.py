"""`tracegrad bench collector`: how fast spans become rows, beside what the engine and the disk do alone.

The collector is on one core, the load generator on others. A clock runs from the first byte sent until a query finds
every row, so that receiver, spool, inserts and the merges meanwhile are all in it. `*_per_core` figures are spans per
second of CPU time of all the collector's threads; other rates are what senders see of a collector that has one core.
Whatever is compared is measured in turn.
"""

import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tracegrad.bench import collector_limits, machine
from tracegrad.bench.collector_phases import Kind, Loads, Phase, phase
from tracegrad.bench.collector_report import Found, Recovery, metrics, notes, tables
from tracegrad.bench.collector_under_test import IDS, CollectorUnderTest, Peaks, collector
from tracegrad.bench.metric import Outcome
from tracegrad.bench.orders import ordered
from tracegrad.bench.plan import Plan

GENERATOR = "tracegrad.bench.collector_load"
EXPORTED = 512
"""Spans in a request: what OpenTelemetry's SDKs send at most."""
FEW, SIDECARS = 50, 10
PACE = 5_000
"""Spans a second, where acknowledgements are timed."""
LATENCY_CONNECTIONS = 32
MARKERS_PER_S = 4
SETTLE_S = 0.5


@dataclass(frozen=True)
class _Kinds:
    """The loads of a run."""

    warm: Kind
    large: Kind
    small: Kind
    tens: Kind
    few: Kind
    exported: Kind
    markers: Kind

    @staticmethod
    def of(plan: Plan) -> "_Kinds":
        """As many spans, for as long, as the plan says."""
        paced_s = 3 * plan.seconds

        def full(title: str, spans: int, *, small: bool = False) -> Kind:
            return Kind(title, spans, max(2, plan.spans // spans), small=small)

        def paced(title: str, spans: int, seconds: float = paced_s) -> Kind:
            requests = max(4, round(seconds * PACE / spans))
            return Kind(title, spans, requests, LATENCY_CONNECTIONS, per_s=PACE)

        at_a_pace = f"{PACE:,} spans/s, requests of"
        return _Kinds(
            Kind("warming up", EXPORTED, max(2, plan.spans // 8 // EXPORTED)),
            full(f"6 kB spans, requests of {EXPORTED}", EXPORTED),
            full(f"500 B spans, requests of {EXPORTED}", EXPORTED, small=True),
            replace(full(f"6 kB spans, requests of {SIDECARS}", SIDECARS), connections=LATENCY_CONNECTIONS),
            paced(f"{at_a_pace} {FEW}", FEW),
            paced(f"{at_a_pace} {EXPORTED}", EXPORTED),
            replace(
                paced(f"{at_a_pace} {FEW}, with queries for markers", FEW), marker_every=PACE // FEW // MARKERS_PER_S
            ),
        )


def run(plan: Plan) -> Outcome:
    """Measure everything. Raises TracegradError; whatever was started is stopped."""
    load_average = os.getloadavg()[0]
    kinds, cores = _Kinds.of(plan), machine.cores()
    with tempfile.TemporaryDirectory(prefix="tracegrad-bench-") as place:
        directory = Path(place)
        with ordered("load generator", GENERATOR, (), directory, cores.load) as generator:
            bench = _Bench(plan, kinds, cores, directory, Loads(generator, plan.say))
            found = replace(bench.run(), load_average=load_average)
    return Outcome(metrics(found), tables(found), notes(plan, cores, found))


@dataclass(frozen=True)
class _Bench:
    """One run."""

    plan: Plan
    kinds: _Kinds
    cores: machine.Cores
    directory: Path
    loads: Loads

    def run(self) -> Found:
        plan, loads, kinds, data = self.plan, self.loads, self.kinds, self.directory / "store"
        plan.say("the collector is starting")
        with collector(self.directory, self.cores.proxy, plan.base, data) as tested:
            loads.measure(tested, kinds.warm)
            large, engine = self._beside_the_engine(tested)
            python = self._python(tested)
            small, tens = (phase(loads, tested, kind, plan.repeats) for kind in (kinds.small, kinds.tens))
            few, exported = (phase(loads, tested, kind, plan.repeats) for kind in (kinds.few, kinds.exported))
            grpc = tuple(
                phase(loads, tested, replace(kind, title=f"gRPC: {kind.title}", grpc=True), plan.repeats)
                for kind in ((kinds.large, kinds.few, kinds.exported) if tested.has_grpc else ())
            )
            markers = phase(loads, tested, kinds.markers, plan.repeats)
            plan.say("what a server that only counts, and a file with fsync, do with the same")
            counted = collector_limits.counted(self.directory, self.cores, loads, kinds.large)
            written = collector_limits.written(self.directory, loads, kinds.large)
            plan.say("killed with a backlog")
            rows, stored = self._send_and_kill(tested)
        recovery, peaks = self._recover(tested, rows, stored)
        return Found(
            large=large,
            engine=engine,
            python=python,
            small=small,
            tens=tens,
            few=few,
            exported=exported,
            grpc=grpc,
            markers=markers,
            counted=counted,
            written=written,
            recovery=recovery,
            peaks=(tested.peaks, peaks),
        )

    def _beside_the_engine(self, tested: CollectorUnderTest) -> tuple[Phase, Phase]:
        """The collector, and then the engine alone with the very same requests and as many inserts; again and again."""
        ours, alone = [], []
        kind, repeats = self.kinds.large, self.plan.repeats
        with collector_limits.engine(self.directory, self.cores) as engine:
            warm = self.loads.load(self.kinds.warm)
            engine.measure(self.loads, warm, 1)
            for repeat in range(repeats):
                self.plan.say(f"{kind.title}, {repeat + 1} of {repeats}")
                load = self.loads.load(kind, tested.otlp_port)
                ours.append(self.loads.measure(tested, kind, load))
                alone.append(engine.measure(self.loads, load, ours[-1].inserts or 1))
        return Phase(kind.title, ours), Phase(kind.title, alone)

    def _python(self, tested: CollectorUnderTest) -> Phase:
        """The least collector in Python, less often: it is slow."""
        kind = self.kinds.large
        half = replace(kind, requests=max(2, kind.requests // 2))
        self.plan.say(f"{kind.title}: {collector_limits.PYTHON}")
        with collector_limits.rows_in_python(self.directory, self.cores, tested) as python:
            python.measure(self.loads, self.kinds.warm)
            return Phase(kind.title, [python.measure(self.loads, half) for _ in range(min(2, self.plan.repeats))])

    def _send_and_kill(self, tested: CollectorUnderTest) -> tuple[int, int]:
        """Send as fast as it is taken and kill at once: how many rows must be there after, and how many are now."""
        kind, before = self.kinds.large, tested.rows
        self.loads.send(self.loads.load(kind, tested.otlp_port), "collector")
        stored = tested.rows
        tested.kill()
        return before + kind.spans * kind.requests, stored

    def _recover(self, killed: CollectorUnderTest, rows: int, stored: int) -> tuple[Recovery, Peaks]:
        """Start it again on the same store, until a query finds everything that was acknowledged."""
        begun = time.monotonic()
        with collector(
            self.directory, self.cores.proxy, self.plan.base, killed.data, name="collector again"
        ) as started:
            ended = started.wait_for(rows)
            time.sleep(SETTLE_S)  # what comes twice may come later
            total = started.rows
            started.look()
            peaks = replace(started.peaks)  # before a query that takes memory for the bench alone
            doubled = total - started.ask(IDS)
        recovery = Recovery(rows - stored, ended - begun, killed.ready_s, max(0, rows - total), doubled)
        return recovery, peaks
