"""`tracegrad doctor`."""

import asyncio
import dataclasses
import json

import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile

EXAMPLE = "Example: tracegrad doctor"

MARKS = {"ok": ("ok  ", typer.colors.GREEN), "warn": ("warn", typer.colors.YELLOW), "fail": ("FAIL", typer.colors.RED)}


def command(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Say what is wrong with the set-up, and what to do. Status 1 when something does not work at all."""
    from tracegrad.doctor import examine

    findings = asyncio.run(examine(settings.load(config)))
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            mark, color = MARKS[finding.verdict]
            advice = f"\n       -> {finding.advice}" if finding.advice else ""
            typer.echo(f"{typer.style(mark, fg=color)}  {finding.check}: {finding.what}{advice}")
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(1)
