"""`tracegrad transitions`."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from tracegrad import settings
from tracegrad.cli import training_data as options
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.cli.table import table
from tracegrad.delivered import wait_until_delivered

if TYPE_CHECKING:
    from trainer.counterfactual import Difference
    from trainer.store import Store

EXAMPLE = "Example: tracegrad transitions --task capital-7 --json > transitions.jsonl"


def command(
    config: ConfigFile = None,
    as_json: AsJson = False,
    *,
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
    diff: Annotated[
        str | None,
        typer.Option(
            help="Rebuild this step (`last`: the newest) and show what differs from what it did train.", metavar="STEP"
        ),
    ] = None,
) -> None:
    """Show what training sees: state, action, reward and next state of every model call, down to the token.

    With other rewards (--reward-set) or credit it shows what a job would have trained with them; with --diff, beside
    what it did train.
    """
    chosen = settings.load(config)
    from trainer.listing import list_transitions
    from trainer.store import Store

    selection = options.Selection(
        rollout, task, agent, policy, since, job, credit, gamma, advantage, no_advantage, reward_set
    )
    selection.check()
    if diff is not None and (others := selection.not_of_a_step()):
        raise typer.BadParameter(
            f"--diff is about the transitions of one step, and {', '.join(others)} would choose others: of a step's, "
            "choose with --rollout and --agent"
        )
    asyncio.run(wait_until_delivered(chosen))
    store = Store(chosen.clickhouse)
    try:
        if diff is not None:
            _show_differences(_differences(store, diff, selection), as_json)
            return
        lines = list_transitions(store, selection.wanted(store))
        if as_json:
            _write(lines)
            return
        texts = _table(lines)
        for text in texts:
            typer.echo(text)
        if len(texts) == 1:
            typer.echo(
                "no transition is chosen: what there is shows "
                '`tracegrad sql "SELECT rollout_id, task_id, agents FROM rollouts"`',
                err=True,
            )
    finally:
        store.close()


def _write(lines: Iterable[dict[str, Any]]) -> None:
    for line in lines:
        sys.stdout.buffer.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()


def _differences(store: "Store", step_id: str, selection: options.Selection) -> "list[Difference]":
    from trainer.batch_choices import Choices
    from trainer.counterfactual import config_of_step, differences

    step = store.trained_step(step_id)
    config = selection.job_config() or config_of_step(step)
    choices = selection.changed(Choices.of_job(config), config, store)
    return [
        found
        for found in differences(store, step, config, choices)
        if selection.rollout in (None, found.rollout_id) and selection.agent in (None, found.agent)
    ]


def _show_differences(found: "Sequence[Difference]", as_json: bool) -> None:
    if as_json:
        _write(difference.line() for difference in found)
        return
    header = ("ROLLOUT", "AGENT", "SPAN", "CREDIT", "NOW", "ADVANTAGE", "NOW", "USED", "NOW")
    rows = [
        (
            difference.rollout_id + (f"/{difference.attempt}" if difference.attempt else ""),
            difference.agent,
            difference.span_id,
            *(_number(side.credit) for side in (difference.trained, difference.rebuilt)),
            *(_number(side.advantage) for side in (difference.trained, difference.rebuilt)),
            *("yes" if side.used else f"no: {side.drop_reason}" for side in (difference.trained, difference.rebuilt)),
        )
        for difference in found
        if not difference.same
    ]
    if rows:
        for text in table(header, rows):
            typer.echo(text)
    counts = Counter(difference.same for difference in found)
    typer.echo(f"{counts[True]} transitions would be trained as they were, {counts[False]} would not")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:+.4f}"


def _table(lines: Iterable[dict[str, Any]]) -> list[str]:
    """Each line becomes text as it comes: none of the token arrays is kept."""
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
