"""What a bench found: figures with names that programs rely on, and what each should be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """One figure. `value` None: not known on this machine, and a note says why. `goal`: as in `<= 0.6`."""

    name: str
    value: float | None
    what: str
    goal: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is; None without a value or a goal."""
        if self.value is None or not self.goal:
            return None
        sign, limit = self.goal.split()
        return self.value <= float(limit) if sign == "<=" else self.value >= float(limit)


@dataclass(frozen=True)
class Table:
    """Rows of text for people."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Outcome:
    """What one part of the bench found. `details` are tables beside the metrics; `notes` are sentences."""

    metrics: Sequence[Metric]
    details: Sequence[Table] = ()
    notes: Sequence[str] = field(default=())

    def values(self) -> Mapping[str, float | None]:
        """Metric name -> number, rounded to what a measurement can tell."""
        return {metric.name: rounded(metric.value) for metric in self.metrics}


def rounded(value: float | None, digits: int = 4) -> float | None:
    """So many digits, or all that stand before the point."""
    if value is None:
        return None
    return round(value) if abs(value) >= 1000 else float(f"{value:.{digits}g}")


def shown(value: float | None, digits: int = 4) -> str:
    """A figure for people."""
    short = rounded(value, digits)
    if short is None:
        return "not known"
    return f"{short:,}" if isinstance(short, int) else f"{short:g}"
