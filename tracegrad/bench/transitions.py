"""`tracegrad bench transitions`: how fast spans in the store become packed rows, what it costs, and what else it could.

Rollouts of ten calls are made in two stores, one ten times the other. A fresh process then does what a training job
does with all that waits: plan, read, credit, advantages, gate, merge, pack, a batch at a time. Trainer and store share
one core, so that nothing hides beside it; once they have a core each. Tokens are those of the transitions, prompt and
response, however few of them the store holds or a row has to. `*_per_core` figures are per second of CPU time of
trainer and store together. Whatever is compared is measured in turn.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tracegrad.bench import machine
from tracegrad.bench.collector_under_test import CollectorUnderTest
from tracegrad.bench.metric import Outcome
from tracegrad.bench.orders import ordered
from tracegrad.bench.plan import Plan
from tracegrad.bench.transitions_reader import Order, Read
from tracegrad.bench.transitions_report import COLUMNS, JOB, ROWS, Found, Ran, metrics, notes, tables
from tracegrad.bench.transitions_store import CALLS, POLICY, Filled
from tracegrad.errors import TracegradError

READER = "tracegrad.bench.transitions_reader"
TIMES = 10
LIMIT_S = 3_600.0


def run(plan: Plan) -> Outcome:
    """Measure everything. Raises TracegradError; whatever was started is stopped."""
    load_average, cores = os.getloadavg()[0], machine.cores()
    small = max(1, plan.rollouts // TIMES)
    stores = {
        "small": Filled("small store", small),
        "large": Filled("large store", small * TIMES),
        "whole": Filled("store of whole prompts", small, whole=True),
    }
    with tempfile.TemporaryDirectory(prefix="tracegrad-bench-") as place:
        directory = Path(place)
        for store in stores.values():
            store.fill(directory, cores.all, plan.base, plan.say)
        bench = _Bench(plan, cores, directory, stores)
        found = Found(
            one_core=bench.on_one_core(),
            two_cores=bench.on_two_cores(),
            disk_bytes={name: store.disk_bytes(directory) for name, store in stores.items()},
            load_average=load_average,
        )
    return Outcome(metrics(found), tables(found), notes(plan, cores, found))


class _Bench:
    """One run."""

    def __init__(self, plan: Plan, cores: machine.Cores, directory: Path, stores: Mapping[str, Filled]) -> None:
        self._plan, self._cores, self._directory, self._stores = plan, cores, directory, stores

    def on_one_core(self) -> dict[tuple[str, str], list[Ran]]:
        """By store and way: everything on one core. A store that is not asked anything takes none of it."""
        runs: dict[tuple[str, str], list[Ran]] = {}
        with ExitStack() as held:
            served = {
                name: held.enter_context(store.served(self._directory, self._cores.proxy, self._plan.base))
                for name, store in self._stores.items()
            }
            ways = [("small", JOB), ("large", JOB), ("whole", JOB), ("small", COLUMNS), ("small", ROWS)]
            for repeat in range(self._plan.repeats):
                for store, way in ways:
                    self._plan.say(f"{self._stores[store].name}, {way}, {repeat + 1} of {self._plan.repeats}")
                    runs.setdefault((store, way), []).append(self._read(served[store], store, way))
        return runs

    def on_two_cores(self) -> Sequence[Ran]:
        """The small store, with a core for itself."""
        with self._stores["small"].served(self._directory, self._cores.load, self._plan.base) as tested:
            self._plan.say("small store, on a core of its own")
            return [self._read(tested, "small", JOB) for _ in range(self._plan.repeats)]

    def _read(self, tested: CollectorUnderTest, store: str, way: str) -> Ran:
        """Have a fresh process read a store once, after a batch that is not counted."""
        order = Order(way, f"http://127.0.0.1:{tested.sql_port}", POLICY, self._plan.batch, str(self._directory))
        with ordered("trainer", READER, (), self._directory, self._cores.proxy) as reader:
            reader.order(asdict(order) | {"most": self._plan.batch}, LIMIT_S)
            cpu_s, busy_s = tested.cpu_s, machine.busy_s()
            read = Read(**reader.order(asdict(order), LIMIT_S))
            store_s = _difference(tested.cpu_s, cpu_s)
        self._check(read, store)
        busy = _difference(machine.busy_s(), busy_s)
        others = None
        if busy is not None and store_s is not None:
            others = max(0.0, busy - store_s - read.cpu_s) / read.seconds
        return Ran(way, read, store_s, machine.peak_resident_bytes(tested.pids), others)

    def _check(self, read: Read, store: str) -> None:
        made = self._stores[store].rollouts
        if (read.rollouts, read.transitions) != (made, made * CALLS):
            raise TracegradError(
                f"{read.rollouts:,} rollouts with {read.transitions:,} calls were read of {made:,} with {CALLS} each"
            )


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier
