"""`tracegrad reward rules`."""

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.cli.table import table
from tracegrad.errors import SettingsError

if TYPE_CHECKING:
    from reward.rules.run import Evaluated

EXAMPLE = "Example: tracegrad reward rules rules.toml --since 1d --dry-run"
BAD_USAGE = 2


def command(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The rules and their weights.", metavar="RULES_TOML")],
    *,
    rollout: Annotated[str | None, typer.Option(metavar="ID", help="Only this rollout.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only rollouts that began at a time (2026-01-31T12:00) or at most an age (7d) ago."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be given, write nothing.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Reward what spans tell of finished rollouts: failed tools, cut-off answers, seconds, dollars.

    Each rule of the file is a weight for something that is found in spans. It may be run again at any time: only what
    has changed is written, and what no longer holds, or has no rule in the file any more, is withdrawn.
    """
    chosen = settings.load(config or (context.obj if isinstance(context.obj, Path) else None))
    from reward.rules.file import load
    from reward.rules.run import apply_rules

    try:
        rules, since_ns = load(file), _since_ns(since)
    except SettingsError as error:
        typer.echo(f"tracegrad: {error}", err=True)
        raise typer.Exit(BAD_USAGE) from error
    evaluated = asyncio.run(apply_rules(chosen, rules, rollout_id=rollout, since_ns=since_ns, dry_run=dry_run))
    if as_json:
        typer.echo(json.dumps(evaluated.as_json()))
        return
    for line in _lines(evaluated):
        typer.echo(line)


def _since_ns(since: str | None) -> int:
    from trainer.since import LAST, parse_since

    if since is None:
        return 0
    if since == LAST:
        raise SettingsError(f"bad --since {LAST!r}: give a time like 2026-01-31T12:00, or an age like 7d")
    return parse_since(since, time.time_ns()).from_ns


def _lines(evaluated: "Evaluated") -> list[str]:
    written = "TO WRITE" if evaluated.dry_run else "WRITTEN"
    rows = [
        (name, str(tally.times), f"{tally.total:+.6g}", str(tally.written), str(tally.withdrawn))
        for name, tally in evaluated.rules.items()
    ]
    skipped = []
    if evaluated.unfinished:
        skipped.append(f"{evaluated.unfinished} that are not finished")
    if evaluated.nobodys_fault:
        skipped.append(f"{evaluated.nobodys_fault} that were interrupted or never started")
    left = f"; left alone: {', '.join(skipped)}" if skipped else ""
    verb = "would be written" if evaluated.dry_run else "written"
    return [
        *(table(("RULE", "TIMES", "SUM", written, "WITHDRAWN"), rows) if rows else ()),
        f"{evaluated.judged} rollouts judged, {evaluated.written} rewards {verb}{left}",
    ]
