"""`tracegrad rollout`."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile

if TYPE_CHECKING:
    from tracegrad.rollout import RunResult, Summary

EXAMPLE = """Example:

tracegrad rollout --tasks tasks.jsonl --n 8 -- \\
  opentelemetry-instrument python my_agent.py "{question}"
"""
COMMAND_OPTIONS = {"context_settings": {"allow_interspersed_args": False}}


def command(
    *,
    agent: Annotated[
        list[str], typer.Argument(help="The agent's command, after `--`. {field} stands for a task's field.")
    ],
    tasks: Annotated[Path, typer.Option(help="JSONL file, one task a line; `id` names it.", metavar="FILE")],
    n: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Agents at the same time.")] = 8,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until an agent is ended.")] = 120.0,
    split: Annotated[Literal["train", "eval"], typer.Option(help="Rollouts of `eval` are never trained on.")] = "train",
    warm: Annotated[
        bool, typer.Option("--warm", help="Fork agents from one parent that has imported their libraries.")
    ] = False,
    env: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Add to the agents' environment.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the agents' output here.")] = None,
    sidecar: Annotated[str | None, typer.Option(metavar="URL", help="The sidecar's address.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Run an agent over a task set, each run its own trace with a root span.

    Runs that fail or time out are results, too: the status is 0 when every run's end is stored.
    """
    chosen = settings.load(config)
    if sidecar is not None:
        chosen = chosen.with_address("sidecar_url", sidecar)
    variables = dict(_variable(text) for text in env or [])
    from tracegrad.rollout import read_tasks, run_rollouts

    given = read_tasks(tasks)

    async def run(progress: "Callable[[RunResult], None]") -> "Summary":
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - asyncio.run made it
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
        return await run_rollouts(
            given,
            agent,
            chosen,
            n=n,
            workers=workers,
            timeout_s=timeout,
            split=split,
            warm=warm,
            env=variables,
            data=data,
            progress=progress,
        )

    with _progress(len(given) * n) as progress:
        try:
            summary = asyncio.run(run(progress))
        except asyncio.CancelledError as cancelled:  # by SIGTERM; Ctrl-C ends as KeyboardInterrupt by itself
            raise KeyboardInterrupt from cancelled
    typer.echo(json.dumps(summary.as_json()) if as_json else _sentence(summary))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--env")
    return name, value


def _sentence(summary: "Summary") -> str:
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(summary.by_status.items(), reverse=True))
    errors = ", ".join(f"{count} {error}" for error, count in sorted(summary.by_error.items()))
    rate = len(summary.results) / max(summary.seconds, 1e-9)
    return f"{len(summary.results)} rollouts in {summary.seconds:.1f} s ({rate:.1f}/s): {statuses}" + (
        f" ({errors})" if errors else ""
    )


@contextmanager
def _progress(total: int) -> "Iterator[Callable[[RunResult], None]]":
    """A function to call for each ended run: a bar on a terminal, a line each elsewhere. Both on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    failed = 0
    if not console.is_terminal:
        done = 0

        def line(result: "RunResult") -> None:
            nonlocal done
            done += 1
            error = f" error={result.error_type}" if result.error_type else ""
            words = f": {result.message}" if result.message else ""
            typer.echo(
                f"{done}/{total} task={result.task_id} rollout={result.rollout_id} status={result.status}"
                f"{error} seconds={result.seconds:.1f}{words}",
                err=True,
            )

        yield line
        return
    columns = (TextColumn("rollouts"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
        bar = bars.add_task("", total=total)

        def advance(result: "RunResult") -> None:
            nonlocal failed
            failed += result.status != "succeeded"
            bars.update(bar, advance=1, description=f"{failed} not succeeded" if failed else "")

        yield advance
