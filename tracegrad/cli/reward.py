"""`tracegrad reward`."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracegrad import settings
from tracegrad.cli import reward_rules
from tracegrad.cli.options import AsJson, ConfigFile

if TYPE_CHECKING:
    from reward.score import Scores

EXAMPLE = "Example: tracegrad reward --tasks tasks.jsonl --grader numeric"

app = typer.Typer(epilog=EXAMPLE)
app.command("rules", epilog=reward_rules.EXAMPLE)(reward_rules.command)


@app.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    *,
    tasks: Annotated[
        Path | None, typer.Option(help="The task file of the rollouts (required).", metavar="FILE")
    ] = None,
    grader: Annotated[Literal["exact", "numeric"], typer.Option(help="How answers are compared.")] = "numeric",
    answer_field: Annotated[str, typer.Option(help="The task's field that holds the right answer.")] = "answer",
    name: Annotated[str, typer.Option(help="What the reward is called; rewards of several names add up.")] = "reward",
    rollout: Annotated[str | None, typer.Option(metavar="ID", help="Only this rollout.")] = None,
    again: Annotated[
        bool, typer.Option("--all", help="Grade again what has such a reward; the newest counts.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Score finished rollouts: the last line that the agent printed against a field of its task.

    Or, with `rules`, reward what their spans tell.
    """
    if context.invoked_subcommand is not None:
        context.obj = config
        return
    if tasks is None:
        context.fail("Missing option '--tasks'.")
    chosen = settings.load(config)
    from reward.score import score_rollouts
    from tracegrad.rollout.tasks import read_tasks

    scores = asyncio.run(
        score_rollouts(
            chosen,
            read_tasks(tasks),
            grader=grader,
            answer_field=answer_field,
            name=name,
            rollout_id=rollout,
            again=again,
        )
    )
    typer.echo(json.dumps(scores.as_json()) if as_json else _sentence(scores, name))


def _sentence(scores: "Scores", name: str) -> str:
    skipped = []
    if scores.unknown_task:
        skipped.append(f"{scores.unknown_task} of tasks that the file does not hold")
    if scores.nobodys_fault:
        skipped.append(f"{scores.nobodys_fault} that were interrupted or never started")
    left = f"; left alone: {', '.join(skipped)}" if skipped else ""
    if scores.mean is None:
        return f"no finished rollout without a reward called {name!r}{left}"
    labels = ", ".join(f"{count} {label}" for label, count in scores.by_label.items())
    return f"{scores.rewarded} rollouts rewarded, mean {scores.mean:.3f} ({labels}){left}"
