"""Metric families: Prometheus' text format, and the sum over several processes.

Invariant: a counter of the sum never goes backwards, also when a process ends: what it counted stays (`ended`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, Self

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "tracegrad_sidecar_"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

Labels = tuple[str, ...]
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Family:
    """One metric with its samples, by label values. A histogram's samples have the name's suffix as a first label."""

    name: str
    kind: Kind
    text: str
    labels: Labels
    samples: Mapping[Labels, float]
    over_processes: Literal["sum", "max", "own"] = "sum"
    """How it is put together; `own`: all processes see the same, and the one that answers says what it sees."""

    def to_json(self) -> dict[str, Any]:
        """For `from_json` in another process."""
        kept = {name: getattr(self, name) for name in ("name", "kind", "text", "labels", "over_processes")}
        return {**kept, "samples": [[*labels, number] for labels, number in self.samples.items()]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        samples = {tuple(labels): number for *labels, number in values["samples"]}
        return cls(**{**values, "labels": tuple(values["labels"]), "samples": samples})

    def plus(self, other: "Family") -> "Family":
        """This one and another process's in one."""
        if self.over_processes == "own":
            return self
        samples = dict(self.samples)
        for labels, number in other.samples.items():
            known = samples.get(labels)
            if known is None:
                samples[labels] = number
            else:
                samples[labels] = max(known, number) if self.over_processes == "max" else known + number
        return replace(self, samples=samples)


@dataclass
class Histogram:
    """How many requests took how long."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total_s += seconds

    def family(self, name: str, text: str) -> Family:
        """As a metric."""
        bounds = [*(str(bound) for bound in SECONDS), "+Inf"]
        samples: dict[Labels, float] = {
            ("bucket", bound): count for bound, count in zip(bounds, accumulate(self.counts), strict=True)
        }
        return Family(
            name, "histogram", text, ("le",), samples | {("sum",): self.total_s, ("count",): sum(self.counts)}
        )


def merged(own: Sequence[Family], others: Iterable[Sequence[Family]]) -> list[Family]:
    """The families of all processes in one list."""
    found = {family.name: family for family in own}
    for families in others:
        for family in families:
            known = found.get(family.name)
            found[family.name] = family if known is None else known.plus(family)
    return list(found.values())


def what_stays(families: Iterable[Family]) -> list[Family]:
    """What still counts of a process that has ended."""
    return [family for family in families if family.kind != "gauge"]


def render(families: Iterable[Family]) -> str:
    """The whole page."""
    return "".join(_lines(family) for family in families)


def _lines(family: Family) -> str:
    full = PREFIX + family.name
    lines = [f"# HELP {full} {family.text}", f"# TYPE {full} {family.kind}"]
    for labels, number in family.samples.items():
        name, values = full, labels
        if family.kind == "histogram":
            name, values = f"{full}_{labels[0]}", labels[1:]
        pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in zip(family.labels, values, strict=False))
        lines.append(f"{name}{{{pairs}}} {number}" if pairs else f"{name} {number}")
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
