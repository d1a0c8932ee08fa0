"""`tracegrad export`."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from tracegrad import settings
from tracegrad.cli import training_data as options
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.cli.progress import counting
from tracegrad.delivered import wait_until_delivered

EXAMPLE = "Example: tracegrad export --format parquet --policy policy --out transitions.parquet"


def command(
    config: ConfigFile = None,
    as_json: AsJson = False,
    *,
    chosen_format: Annotated[
        Literal["parquet", "jsonl", "verl"],
        typer.Option(
            "--format",
            help="`parquet`: one row per transition; `jsonl`: the lines of `tracegrad transitions --json`; `verl`: a "
            "DataProto of what is used. That is a pickle, which runs what is in it: load only files that you made.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write.", metavar="PATH")],
    messages: Annotated[
        bool,
        typer.Option(
            "--messages",
            help="With jsonl: conversations for SFT instead of tokens, also of imported calls.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    rollout: options.Rollout = None,
    task: options.Task = None,
    agent: options.Agent = None,
    policy: options.Policy = None,
    since: options.SinceWhen = None,
    job: options.JobFile = None,
    credit: options.Credit = None,
    gamma: options.Gamma = None,
    advantage: options.Advantage = None,
    no_advantage: options.NoAdvantage = False,
    reward_set: options.RewardSet = None,
) -> None:
    """Write training data for other programs: a file that is there as a whole or not at all.

    With --messages a line is {"messages": ..., "tools": ...} and where it is from; what is told of credit and advantage
    does not matter then.
    """
    chosen = settings.load(config)
    if messages and chosen_format != "jsonl":
        raise typer.BadParameter("--messages goes with --format jsonl")
    if messages and since == "last":
        raise typer.BadParameter("--since last is about steps, and --messages is not: give a time, or an age like 7d")
    from trainer.export import export_conversations, export_transitions
    from trainer.store import Store

    selection = options.Selection(
        rollout, task, agent, policy, since, job, credit, gamma, advantage, no_advantage, reward_set
    )
    selection.check()
    asyncio.run(wait_until_delivered(chosen))
    store = Store(chosen.clickhouse)
    skipped = 0
    try:
        wanted = selection.wanted(store)
        with counting("wrote", "lines") as progress:
            if messages:
                written, skipped = export_conversations(store, wanted, out, force=force, progress=progress)
            else:
                written = export_transitions(store, wanted, chosen_format, out, force=force, progress=progress)
    finally:
        store.close()
    if as_json:
        found = {"out": str(out), "format": chosen_format, "written": written}
        typer.echo(json.dumps(found | ({"skipped": skipped} if messages else {})))
        return
    what = "conversations" if messages else "transitions"
    left = f"; {skipped} calls left out, of which no question or no answer was recorded" if skipped else ""
    typer.echo(f"wrote {written} {what} to {out}{left}")
