"""The demo from end to end: model, services, rollouts, rewards, training, report. Every part is the product's own."""

import asyncio
import fcntl
import json
import random
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from tracegrad import clickhouse, services, settings
from tracegrad.demo import report, tasks, warm_start
from tracegrad.demo.commands import Commands
from tracegrad.demo.memory import PeakMemory
from tracegrad.demo.plan import Plan
from tracegrad.errors import TracegradError

AGENT = "calculator_agent.py"
STEP_TIMEOUT_S = 300.0


async def run(plan: Plan, base: settings.Settings, console: Console) -> report.Measured:
    """Run the whole demo, on the ports of `base` where they are free, and write its report.

    Raises TracegradError; cancelling it stops what it started.
    """
    started = time.monotonic()
    held_out = tasks.held_out(plan.seed, plan.n_eval)
    questions = {task.question for task in held_out}
    with PeakMemory() as peak:
        console.rule("[bold]1. a small model that solves part of the tasks")
        await _model(plan, questions, console)
        _empty(plan.run)
        console.rule("[bold]2. collector, vLLM and sidecar")
        config, chosen = _settings(plan, base, console)
        processes = services.services(chosen, config, plan.engine)

        def say(line: str) -> None:
            console.print(f"   {line}", markup=False)  # log lines hold brackets that are no markup

        async with services.Running(processes, plan.run / "logs", say) as running:
            road = _Road(plan, config, chosen, console)
            watching = asyncio.create_task(running.watch())
            working = asyncio.create_task(road.travel(held_out, questions))
            try:
                done, _ = await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # Agents and trainer end before the services that they talk to.
                watching.cancel()
                working.cancel()
                await asyncio.gather(watching, working, return_exceptions=True)
            for task in done:
                task.result()
            console.rule("[bold]7. report")
            measured = road.measure(time.monotonic() - started, peak.bytes)
    return measured


async def _model(plan: Plan, questions: set[str], console: Console) -> None:
    if plan.model.exists():
        console.print(f"   keeping the warm-started model of an earlier run: {plan.model}")
        return
    config = plan.warm_start
    console.print(f"   warm start on {config.steps} batches of {config.batch} sloppy demonstrations")
    begun = time.monotonic()

    def progress(step: int, loss: float) -> None:
        if step % 50 == 0:
            spent = time.monotonic() - begun
            left = spent / step * (config.steps - step)
            console.print(f"   batch {step}/{config.steps}  loss {loss:.3f}  {spent:.0f} s, about {left:.0f} s to go")

    # A process of its own, so that its memory goes back and Ctrl-C ends it at once.
    await warm_start.build_in_process(plan.model, config, questions, progress)


def _empty(run: Path) -> None:
    """Delete what the last run left. Raises TracegradError while a collector still serves it."""
    store = run / "store"
    if store.exists():
        with (store / "collector.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise TracegradError(
                    f"a collector still serves {store}, which this run would replace: stop it"
                ) from error
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)


def _settings(plan: Plan, base: settings.Settings, console: Console) -> tuple[Path, settings.Settings]:
    """The demo's own configuration: the ports of `base` where they are free, and all data under `plan.run`."""
    wanted = {
        "collector": ("otlp_http_port", "otlp_grpc_port", "clickhouse_port"),
        "sidecar": ("port", "admin_port"),
        "vllm": ("port",),
    }
    ports: dict[str, dict[str, int]] = {}
    for section, names in wanted.items():
        for name in names:
            port = getattr(getattr(base, section), name)
            if not _free(port):
                taken, port = port, _any_free_port()
                console.print(f"   port {taken} is in use, using {port} instead")
            ports.setdefault(section, {})[name] = port
    file = plan.run / "tracegrad.toml"
    file.write_text(
        f"""\
[collector]
data = "{plan.run / "store"}"
otlp_http_port = {ports["collector"]["otlp_http_port"]}
otlp_grpc_port = {ports["collector"]["otlp_grpc_port"]}
clickhouse_port = {ports["collector"]["clickhouse_port"]}

[sidecar]
port = {ports["sidecar"]["port"]}
admin_port = {ports["sidecar"]["admin_port"]}
data = "{plan.run / "sidecar"}"
weights = "{plan.run / "weights"}"

[vllm]
port = {ports["vllm"]["port"]}
"""
    )
    return file, settings.load(file, environ={})


def _free(port: int) -> bool:
    try:
        services.require_free("127.0.0.1", port, "the demo")
    except TracegradError:
        return False
    return True


def _any_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def agent_file() -> Path:
    """The untouched agent: in `examples/` of a checkout, inside the package of an installed wheel."""
    here = Path(__file__).resolve().parent
    for candidate in (here.parents[1] / "examples" / AGENT, here / AGENT):
        if candidate.exists():
            return candidate
    raise TracegradError(f"{AGENT} is missing: reinstall tracegrad")


class _Road:
    """Steps 3 to 6 between running services."""

    def __init__(self, plan: Plan, config: Path, chosen: settings.Settings, console: Console) -> None:
        self._plan = plan
        self._settings = chosen
        self._console = console
        self._commands = Commands(config, services.as_environment(chosen), plan.run / "logs" / "commands.log")
        self._client = clickhouse.connect(chosen.clickhouse)

    async def travel(self, held_out: list[tasks.Task], excluded: set[str]) -> None:
        plan, console = self._plan, self._console
        job = plan.run / "train.toml"
        job.write_text(plan.train_toml(self._settings.sidecar_admin_url))
        async with self._commands.background("train", str(job), "--watch") as check_trainer:
            console.rule("[bold]3. the untouched agent on held-out questions, before training")
            await self._evaluate("before", held_out)
            console.rule(f"[bold]4.-6. roll out, score, train, swap weights: {plan.steps} times")
            source = tasks.stream(random.Random(f"train {plan.seed}"), excluded)
            for step in range(1, plan.steps + 1):
                await self._step(step, [next(source) for _ in range(plan.tasks_per_step)], check_trainer)
            console.rule("[bold]the same held-out questions, after training")
            await self._evaluate("after", held_out)

    async def _step(self, step: int, chosen: list[tasks.Task], check_trainer: Callable[[], None]) -> None:
        begun = time.monotonic()
        with self._console.status(f"step {step}: {self._plan.rollouts_per_step} rollouts"):
            rollouts = await self._roll_out(f"step{step:02d}", chosen, self._plan.rollouts_per_task, "train", "1")
        rolled_out = time.monotonic()
        with self._console.status(f"step {step}: training"):
            row = await self._trained(step, check_trainer)
        now = time.monotonic()
        failed = rollouts["total"] - rollouts["succeeded"]
        trouble = f", {failed} rollouts failed" if failed else ""
        self._console.print(
            f"   step {step:2d}  reward {row.reward:.3f}  -> policy version {row.version}"
            f"  (roll out and score {rolled_out - begun:.0f} s, train {now - rolled_out:.0f} s{trouble})"
        )

    async def _trained(self, step: int, check_trainer: Callable[[], None]) -> report.StepRow:
        """The record of optimiser step number `step`, once the trainer has published and recorded it."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while time.monotonic() < deadline:
            check_trainer()
            rows = await asyncio.to_thread(report.steps, self._client)
            if len(rows) >= step:
                return rows[step - 1]
            await asyncio.sleep(0.3)
        raise TracegradError(f"step {step} was not trained in {STEP_TIMEOUT_S:.0f} s: see {self._plan.run / 'logs'}")

    async def _evaluate(self, name: str, held_out: list[tasks.Task]) -> None:
        with self._console.status(f"{len(held_out)} held-out questions"):
            await self._roll_out(name, held_out, 1, "eval", "0")
        share = await asyncio.to_thread(report.accuracy, self._client, f"{name}-", len(held_out))
        accuracy = report.with_interval(share, len(held_out))
        self._console.print(f"   accuracy {accuracy} on {len(held_out)} questions, greedy")

    async def _roll_out(
        self, name: str, chosen: list[tasks.Task], n: int, split: str, temperature: str
    ) -> dict[str, Any]:
        """Run the agent on each task `n` times, wait for its spans, and score it. Returns the launcher's summary."""
        file = self._plan.run / f"{name}.jsonl"
        rows = [
            {"id": f"{name}-{index:03d}", "question": task.question, "answer": task.answer}
            for index, task in enumerate(chosen)
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        rollouts = await self._commands.run_json(
            *("rollout", "--tasks", str(file), "--n", str(n), "--workers", str(self._plan.workers)),
            *("--split", split, "--warm", "--json", "--env", f"TEMPERATURE={temperature}"),
            *("--", "opentelemetry-instrument", "python", str(agent_file()), "{question}"),
        )
        await self._commands.run_json("reward", "--tasks", str(file), "--grader", "numeric", "--json")
        return rollouts

    def measure(self, seconds: float, peak_memory_bytes: int) -> report.Measured:
        """Read the result from the store and write the report."""
        plan = self._plan
        rows = report.steps(self._client)
        measured = report.Measured(
            seed=plan.seed,
            accuracy_before=report.accuracy(self._client, "before-", plan.n_eval),
            accuracy_after=report.accuracy(self._client, "after-", plan.n_eval),
            n_eval=plan.n_eval,
            policy_versions=report.published_versions(self._client),
            steps=len(rows),
            seconds=round(seconds, 1),
            peak_memory_bytes=peak_memory_bytes,
        )
        answers = [report.answer(self._client, question.sql) for question in report.QUESTIONS]
        path = report.write(report.DIRECTORY, measured, rows, answers, plan.run / "store")
        self._client.close()
        gain = 100 * (measured.accuracy_after - measured.accuracy_before)
        self._console.print(
            f"   held-out accuracy {measured.accuracy_before:.1%} -> {measured.accuracy_after:.1%} ({gain:+.1f} points)"
            f" with {measured.policy_versions} published versions, {seconds / 60:.1f} minutes,"
            f" {peak_memory_bytes / 2**30:.1f} GiB at most"
        )
        for question, result in zip(report.QUESTIONS, answers, strict=True):
            self._console.print(f"\n[bold]{question.words}[/bold]\n{question.sql}\n", highlight=False)
            self._console.print(result, highlight=False, markup=False)
        self._console.print(f"   report: {path} and {path.with_name('reward.png')}")
        return measured
