"""`tracegrad demo`."""

import asyncio
import contextlib
import importlib.util
import signal
from typing import Annotated

import typer

from tracegrad import settings
from tracegrad.cli.options import ConfigFile
from tracegrad.errors import TracegradError

EXAMPLE = "Example: tracegrad demo --seed 1"


def command(
    seed: Annotated[int, typer.Option(help="Seed of the model, the tasks and the sampling.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="GRPO steps, each a published policy version.")] = 14,
    n_eval: Annotated[int, typer.Option(min=1, help="Held-out questions asked before and after.")] = 120,
    warm_steps: Annotated[int, typer.Option(min=1, help="Batches of the supervised warm start.")] = 500,
    config: ConfigFile = None,
) -> None:
    """Train an untouched agent from end to end on this machine and write demo-report/."""
    missing = [name for name in ("torch", "vllm", "verl", "tracegrad_otel") if importlib.util.find_spec(name) is None]
    if missing:
        raise TracegradError(f"the demo needs {', '.join(missing)}: run `make install` in a checkout of tracegrad")
    from rich.console import Console

    from tracegrad.demo.plan import Plan
    from tracegrad.demo.run import run

    # Only the ports of a configuration matter here, and only of one that was asked for.
    base = settings.load(config) if config else settings.Settings()
    plan = Plan(seed=seed, steps=steps, n_eval=n_eval, warm_steps=warm_steps)

    async def until_interrupted() -> None:
        task = asyncio.ensure_future(run(plan, base, Console(soft_wrap=True)))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
            return
        raise TracegradError(f"interrupted; everything is stopped, and `tracegrad demo --seed {seed}` starts again")

    asyncio.run(until_interrupted())
