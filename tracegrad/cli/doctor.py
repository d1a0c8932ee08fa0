"""`tracegrad doctor`."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile

EXAMPLE = "Example: tracegrad doctor --rollout 4f2a91c07be3d658"

MARKS = {"ok": ("ok  ", typer.colors.GREEN), "warn": ("warn", typer.colors.YELLOW), "fail": ("FAIL", typer.colors.RED)}


def command(
    config: ConfigFile = None,
    as_json: AsJson = False,
    *,
    rollout: Annotated[
        str | None, typer.Option(help="Explain this rollout instead of the set-up.", metavar="ID")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Which attempt of the rollout (default: the last).")
    ] = None,
    job: Annotated[
        Path | None, typer.Option(help="Judge the rollout as this job would: a train.toml.", metavar="TRAIN_TOML")
    ] = None,
) -> None:
    """Say what is wrong with the set-up, and what to do. Status 1 when something does not work at all.

    With --rollout it explains one rollout: its spans, which call asked for which tool, where its rewards went, what its
    calls are worth, and whether they are trained on or why not.
    """
    chosen = settings.load(config)
    if rollout is not None:
        _explain(chosen, rollout, attempt, job, as_json)
        return
    if attempt is not None or job is not None:
        raise typer.BadParameter("--attempt and --job belong to --rollout ID")
    from tracegrad.doctor import examine

    findings = asyncio.run(examine(chosen))
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            mark, color = MARKS[finding.verdict]
            advice = f"\n       -> {finding.advice}" if finding.advice else ""
            typer.echo(f"{typer.style(mark, fg=color)}  {finding.check}: {finding.what}{advice}")
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(1)


def _explain(chosen: settings.Settings, rollout: str, attempt: int | None, job: Path | None, as_json: bool) -> None:
    from tracegrad.cli.doctor_rollout import as_object, explained, lines
    from tracegrad.delivered import wait_until_delivered

    asyncio.run(wait_until_delivered(chosen))
    found = explained(chosen.clickhouse, rollout, attempt, job)
    if as_json:
        typer.echo(json.dumps(as_object(found)))
        return
    for line in lines(found):
        typer.echo(line)
