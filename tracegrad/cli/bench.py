"""`tracegrad bench`."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.cli.table import table
from tracegrad.errors import TracegradError

EXAMPLE = "Example: tracegrad bench sidecar --calls 100000 --json"
ALL = "all"
WIDTH = 150


def command(
    part: Annotated[str, typer.Argument(help="Which part, or `all` there are; without it they are listed.")] = "",
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Some seconds, to see that it runs: figures mean little.")
    ] = False,
    calls: Annotated[int, typer.Option(min=100, help="Over how many calls the sidecar's memory is watched.")] = 20_000,
    repeats: Annotated[int, typer.Option(min=1, help="How often each load is measured.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each load lasts.")] = 2.5,
    spans: Annotated[int, typer.Option(min=1024, help="How many spans the collector gets at once.")] = 32_768,
    rollouts: Annotated[
        int, typer.Option(min=160, help="How many rollouts of 10 calls become rows; 100000 make a million transitions.")
    ] = 5_120,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Another proxy to measure too, and the Python of its environment.", metavar="NAME=PYTHON"),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Directory for bench.json.", metavar="DIR")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast the parts are on this machine. Of a configuration, its sections are measured."""
    from tracegrad.bench.parts import PARTS

    if not part:
        rows = [[one.name, one.what if one.run else f"{one.what} (not available yet)"] for one in PARTS.values()]
        typer.echo("\n".join(table(("PART", "WHAT IT MEASURES"), [*rows, [ALL, "all that are available"]])))
        return
    chosen = [one for one in PARTS.values() if part in {one.name, ALL}]
    if not chosen:
        raise typer.BadParameter(f"no part is called {part!r}: `tracegrad bench` lists them", param_hint="PART")
    runs = {one.name: one.run for one in chosen if one.run is not None}
    if not runs:
        raise TracegradError(f"`tracegrad bench {part}` is not available yet: `tracegrad bench` lists what is")
    from tracegrad.bench import plan

    try:
        peers = plan.peers_given(peer or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--peer") from error
    # Only what is asked for is measured: defaults, unless a file is named.
    base = settings.load(config, environ={}) if config else settings.Settings()
    from rich.console import Console

    from tracegrad.bench import report as reports

    with _progress() as say, _ended_by_sigterm():
        if quick:
            size = plan.Plan.quick(say, base, peers)
        else:
            size = plan.Plan(
                say,
                base,
                repeats=repeats,
                seconds=seconds,
                calls=calls,
                spans=spans,
                rollouts=rollouts,
                peers=peers,
            )
        outcomes = {name: run(size) for name, run in runs.items()}
    written = reports.write(report, outcomes) if report else None
    if as_json:
        values = {name: outcome.values() for name, outcome in outcomes.items()}
        typer.echo(json.dumps(values if part == ALL else values[part]))
        for name, outcome in outcomes.items():
            for note in outcome.notes:
                typer.echo(f"{name}: {note}", err=True)
    else:
        console = Console()
        # Where it goes into a file, as wide as the tables are.
        shown_on = console if console.is_terminal else Console(width=WIDTH)
        reports.show(shown_on, outcomes, details=part != ALL)
    if written is not None:
        typer.echo(f"written: {written}", err=True)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A function that is told what is going on: one line that changes on a terminal, plain lines elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: typer.echo(text, err=True)
        return
    with console.status("starting") as status:
        yield status.update


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that whatever was started is stopped."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
