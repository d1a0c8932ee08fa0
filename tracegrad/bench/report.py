"""How a bench is shown: tables for people, `bench.json` for programs."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

import tracegrad
from tracegrad.bench import machine
from tracegrad.bench.metric import Metric, Outcome, Table, shown

DIRECTORY = Path("bench-report")
MARKS = {True: "[green]yes", False: "[red]no", None: ""}


def show(console: Console, outcomes: Mapping[str, Outcome], *, details: bool) -> None:
    """One table of all metrics; with `details`, before it what they were computed from. Notes at the end."""
    for part, outcome in outcomes.items():
        for table in outcome.details if details else ():
            _show(console, part, table)
    about = machine.describe()
    metrics = RichTable(title=f"tracegrad bench, {about['cores']} cores of {about['cpu']}", title_justify="left")
    metrics.add_column("part", no_wrap=True)
    metrics.add_column("metric", no_wrap=True)
    metrics.add_column("value", justify="right", no_wrap=True)
    metrics.add_column("wanted", no_wrap=True)
    metrics.add_column("met")
    metrics.add_column("what it is", overflow="fold")
    for part, outcome in outcomes.items():
        for place, one in enumerate(outcome.metrics):
            metrics.add_row("" if place else part, one.name, shown(one.value), one.goal, MARKS[one.is_met], one.what)
        metrics.add_section()
    console.print(metrics)
    for outcome in outcomes.values():
        for note in outcome.notes:
            console.print(f"note: {note}", markup=False)


def _show(console: Console, part: str, table: Table) -> None:
    drawn = RichTable(title=f"{part}: {table.title}", title_justify="left")
    for place, name in enumerate(table.header):
        drawn.add_column(name, justify="right" if place > 1 else "left", no_wrap=place > 0)
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)


def write(directory: Path, outcomes: Mapping[str, Outcome]) -> Path:
    """Write `bench.json`: where and when, and each part's metrics, goals and notes."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "bench.json"
    value = {
        "tracegrad": tracegrad.__version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "parts": {
            name: {"metrics": outcome.values(), "goals": _goals(outcome.metrics), "notes": list(outcome.notes)}
            for name, outcome in outcomes.items()
        },
    }
    file.write_text(json.dumps(value, indent=2) + "\n")
    return file


def _goals(metrics: Sequence[Metric]) -> dict[str, str]:
    return {metric.name: metric.goal for metric in metrics if metric.goal}
