"""`tracegrad transitions`."""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.cli.table import table
from tracegrad.delivered import wait_until_delivered

EXAMPLE = "Example: tracegrad transitions --task capital-7 --json > transitions.jsonl"


def command(
    config: ConfigFile = None,
    as_json: AsJson = False,
    *,
    rollout: Annotated[str | None, typer.Option(help="Only this rollout.", metavar="ID")] = None,
    task: Annotated[str | None, typer.Option(help="Only rollouts of this task.", metavar="ID")] = None,
    agent: Annotated[str | None, typer.Option(help="Only calls of this agent.", metavar="NAME")] = None,
    policy: Annotated[str | None, typer.Option(help="Only calls of this policy.", metavar="NAME")] = None,
    since: Annotated[
        str | None, typer.Option(help="From a time or an age (7d) on; `last`: what no step has consumed.")
    ] = None,
    credit: Annotated[Literal["identical"], typer.Option(help="Credit assignment.")] = "identical",
    gamma: Annotated[
        float, typer.Option(min=0, max=1, help="Discount of later rewards; `identical` credit has none and ignores it.")
    ] = 1.0,
    advantage: Annotated[Literal["grpo"], typer.Option(help="Advantage estimator.")] = "grpo",
    no_advantage: Annotated[bool, typer.Option("--no-advantage", help="Leave advantages out.")] = False,
) -> None:
    """Show what training sees: state, action, reward and next state of every model call, down to the token."""
    chosen = settings.load(config)
    from trainer.listing import Wanted, list_transitions
    from trainer.since import Since, parse_since
    from trainer.store import Store

    wanted = Wanted(
        since=Since(0, untrained_only=False) if since is None else parse_since(since, time.time_ns()),
        scheme=credit,
        estimator=None if no_advantage else advantage,
        rollout_id=rollout,
        task_id=task,
        agent=agent,
        policy=policy,
    )
    asyncio.run(wait_until_delivered(chosen))
    store = Store(chosen.clickhouse)
    try:
        lines = list_transitions(store, wanted)
    finally:
        store.close()
    if not as_json:
        for text in _table(lines):
            typer.echo(text)
        return
    for line in lines:
        sys.stdout.buffer.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()


def _table(lines: Sequence[dict[str, Any]]) -> list[str]:
    header = (
        "ROLLOUT",
        "TASK",
        "AGENT",
        "CALL",
        "PROMPT",
        "RESPONSE",
        "REWARD",
        "CREDIT",
        "ADVANTAGE",
        "POLICY",
        "USABLE",
    )
    rows = [
        (
            line["rollout_id"] + (f"/{line['attempt']}" if line["attempt"] else ""),
            line["task_id"],
            line["agent"],
            f"{line['index']}{'.' if line['terminal'] else ''}",
            f"{len(line['prompt_token_ids'])} tokens",
            f"{len(line['response_token_ids'])} tokens",
            f"{line['reward']:g}",
            f"{line['credit']:g}",
            "" if line["advantage"] is None else f"{line['advantage']:+.4f}",
            line["policy"] + ("" if line["policy_version"] is None else f"@{line['policy_version']}"),
            "yes" if line["used"] else f"no: {line['drop_reason']}",
        )
        for line in lines
    ]
    return table(header, rows)
