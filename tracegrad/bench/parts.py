"""The parts of the bench. One that has no `run` is announced and not there yet."""

from collections.abc import Callable
from dataclasses import dataclass

from tracegrad.bench import collector, sidecar, transitions
from tracegrad.bench.metric import Outcome
from tracegrad.bench.plan import Plan


@dataclass(frozen=True)
class Part:
    """One part: what it measures, and how."""

    name: str
    what: str
    run: Callable[[Plan], Outcome] | None = None


PARTS = {
    part.name: part
    for part in (
        Part("sidecar", "what the proxy adds to a call: time, CPU, memory, bytes", sidecar.run),
        Part("collector", "spans a second into the store, acknowledgements, memory", collector.run),
        Part("transitions", "tokens a second from spans to packed rows, memory, growth", transitions.run),
        Part("training", "what merging saves, and what swapping weights costs"),
    )
}
