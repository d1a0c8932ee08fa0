"""`tracegrad train`."""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.cli.table import printable
from tracegrad.delivered import wait_until_delivered

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.gate_report import GateReport
    from trainer.job import Job
    from trainer.records import StepRecord

EXAMPLE = "Example: tracegrad train train.toml --watch"

TOLD = ("dropped_", "failed_")
"""What the names of metrics begin with that are always told."""


def command(
    job_file: Annotated[Path, typer.Argument(help="What to learn from and how (train.toml).", metavar="TRAIN_TOML")],
    config: ConfigFile = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Keep going: a step whenever there is enough.")] = False,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many steps (default: 1, with --watch no limit).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what a step would learn from, change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Turn what is new and rewarded into a policy update, and put the new weights into the live engine."""
    chosen = settings.load(config)
    from trainer import config as train_config
    from trainer import run

    job_config = train_config.load(job_file).completed(chosen)
    asyncio.run(wait_until_delivered(chosen))
    out = sys.stdout
    # Libraries below print; standard output is for our lines only.
    with (
        contextlib.redirect_stdout(sys.stderr),
        run.opened_job(job_config, chosen.clickhouse_to_write, exclusive=not dry_run) as job,
    ):
        if dry_run:
            interrupted = job.peek()
            plan = run.settled_plan(job, job_config)
            report = job.gate_report(plan)
            typer.echo(_plan_line(job.plan_metrics(plan), report, interrupted, as_json), file=out)
            report.check(None)
            return

        def tell(step: "StepRecord") -> None:
            typer.echo(_step_line(step, as_json), file=out)
            out.flush()

        if not watch:
            run.train_once(job, job_config, max_steps or 1, tell)
            return
        with run.stop_on_signals() as stop:
            run.watch(job, job_config, max_steps, stop=stop, ready=lambda: _say_ready(job, job_config), report=tell)


def _say_ready(job: "Job", job_config: "TrainConfig") -> None:
    typer.echo(
        f"tracegrad train ready job={job_config.job} policy={job_config.data.policy} version={job.version}", err=True
    )


def _step_line(step: "StepRecord", as_json: bool) -> str:
    if as_json:
        return _json(step.model_dump(exclude={"config", "lineage", "base_sha256", "samples"}))
    metrics = step.metrics
    result = (
        f"{step.policy}@{step.to_version}" if step.updated else f"no signal, {step.policy} stays @{step.to_version}"
    )
    parts = [
        f"step {step.number}: {result}",
        f"reward {metrics['reward_mean']:.3f}",
        f"{metrics['n_rollouts']:.0f} rollouts",
        f"{metrics['n_rows']:.0f} rows",
        *(f"{name} {metrics[name]:.4g}" for name in ("loss", "grad_norm", "logprob_max_diff") if name in metrics),
        *(f"{name} {value:.0f}" for name, value in metrics.items() if name.startswith(TOLD)),
        f"{sum(value for name, value in metrics.items() if name.startswith('seconds_')):.1f} s",
    ]
    return ", ".join(parts)


def _plan_line(metrics: dict[str, float], report: "GateReport", interrupted: "StepRecord | None", as_json: bool) -> str:
    if as_json:
        told = {"metrics": metrics, "gate": {"passed": report.passed, **report.model_dump(exclude={"merge"})}}
        return _json({"dry_run": True, "interrupted_step": interrupted and interrupted.step_id, **told})
    first = f"the interrupted step {interrupted.number} would be finished first; " if interrupted else ""
    learned = ", ".join(f"{printable(name)} {value:.4g}" for name, value in metrics.items())
    verdict = (
        f"the gate {'passes' if report.passed else 'refuses'} it: {report.failed} of {report.looked_at} calls fail; "
        "log-probs are computed again only when the step is made"
    )
    return f"{first}a step would learn from: {learned}\n{verdict}"


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
