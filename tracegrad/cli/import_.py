"""`tracegrad import`."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.cli.progress import counting
from tracegrad.delivered import wait_until_delivered

if TYPE_CHECKING:
    from tracegrad.importing.sending import Imported

EXAMPLE = "Example: tracegrad import traces/*.json --task support"


def command(
    files: Annotated[list[Path], typer.Argument(help="Files of traces in JSON, or JSON lines.", metavar="FILE")],
    *,
    chosen_format: Annotated[
        Literal["auto", "otlp", "openinference", "langfuse"],
        typer.Option(
            "--format",
            help="`otlp`: OTLP in JSON; `openinference`: single spans with GenAI, OpenInference or other known "
            "attributes; `langfuse`: its exported traces; `auto`: whichever each file is.",
        ),
    ] = "auto",
    rollout: Annotated[
        str | None, typer.Option(help="The rollout that all of it is (default: one for each trace).", metavar="ID")
    ] = None,
    task: Annotated[str | None, typer.Option(help="The task that all of it is of.", metavar="ID")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and count, send nothing.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Bring the traces of other systems into the store: for SFT and prompt work, as they have no token ids.

    What is imported never trains a policy by reinforcement. Importing a file again doubles nothing.
    """
    chosen = settings.load(config)
    from tracegrad.importing import reading, sending
    from tracegrad.importing.own_rollouts import refuse_recorded

    found = [reading.recognised(file, chosen_format) for file in files]
    with counting("read", "records") as progress:
        what = sending.read(found, rollout or None, task or None, progress)
    if not dry_run:
        if rollout:
            asyncio.run(wait_until_delivered(chosen))
            refuse_recorded(chosen.clickhouse, rollout)
        with counting("sent", "records") as progress:
            asyncio.run(sending.send(what, chosen, progress))
        asyncio.run(wait_until_delivered(chosen))
    imported = what.imported
    if as_json:
        typer.echo(json.dumps(imported.as_json() | {"files": len(files), "dry_run": dry_run}))
    else:
        typer.echo(_sentence(imported, dry_run=dry_run))


def _sentence(imported: "Imported", *, dry_run: bool) -> str:
    told = f"{imported.traces} traces with {imported.spans} spans"
    parts = [f"{imported.calls} model calls", f"{imported.tools} tools", f"{imported.scores} scores"]
    silent = f"; {imported.silent_calls} calls tell no messages" if imported.silent_calls else ""
    done = "would import" if dry_run else "imported"
    return f"{done} {told} ({', '.join(parts)}), without token ids{silent}"
