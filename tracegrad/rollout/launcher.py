"""Runs agents over tasks, several at a time, and sends each run's root span."""

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracegrad.errors import InputError, UnreachableError
from tracegrad.otlp import OtlpSender, SpanContext
from tracegrad.rollout import environment, preflight
from tracegrad.rollout.agents import ForkedAgents, SeparateAgents, SpawnError, Starter, end_group
from tracegrad.rollout.command import fill, own_programs, split_for_forking
from tracegrad.rollout.output import Output, tail_text
from tracegrad.rollout.results import RunResult, Summary, judge, last_words, root_span
from tracegrad.rollout.tasks import Task
from tracegrad.settings import Settings

SERVICE = "tracegrad.rollout"
SPAN_OUTPUT_BYTES = 32 << 10
"""How much of each stream the root span holds."""

ACKNOWLEDGE_S = 60.0
LEFT_OPEN_S = 1.0

Progress = Callable[[RunResult], None]


@dataclass(frozen=True)
class _Run:
    task: Task
    arguments: tuple[str, ...]
    split: str
    env: Mapping[str, str]
    rollout_id: str
    context: SpanContext
    attempt: int = 0


class Launcher:
    """`async with Launcher(command, settings) as launcher: await launcher.run(tasks, n=8)`, as often as wanted.

    `command` holds `{field}` where a task's field goes. With `warm`, agents are forked from one parent that lives as
    long as the launcher. `env` is added to the agents' environment. `data` is a directory that keeps their output.
    Entering raises TracegradError when something is missing.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: Settings,
        *,
        workers: int = 8,
        timeout_s: float = 120.0,
        warm: bool = False,
        env: Mapping[str, str] | None = None,
        data: Path | None = None,
    ) -> None:
        self._programs = own_programs(command)
        self._forked = split_for_forking(command) if warm else None
        self._arguments = tuple(self._forked.arguments if self._forked else command)
        self._settings = settings
        self._workers = workers
        self._timeout_s = timeout_s
        self._env = dict(env or {})
        self._data = data
        self._sender = OtlpSender(settings.otlp, SERVICE, close_timeout_s=5.0, access=settings.otlp_access)
        self._open = contextlib.AsyncExitStack()
        self._directory: Path
        self._starter: Starter

    async def __aenter__(self) -> "Launcher":
        await preflight.check(self._settings)
        if self._data is not None:
            _make_writable(self._data)
        shared = environment.apply(
            os.environ, environment.shared(self._settings, os.environ), environment.search(self._programs), self._env
        )
        async with contextlib.AsyncExitStack() as opened:
            self._directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="tracegrad-rollout-")))
            await opened.enter_async_context(self._sender)
            if self._forked is not None:
                self._starter = await ForkedAgents.open(self._forked.parent, shared, self._directory)
            else:
                self._starter = SeparateAgents(shared)
            opened.push_async_callback(self._starter.close)
            self._open = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def run(
        self,
        tasks: Sequence[Task],
        *,
        n: int = 1,
        split: str = "train",
        env: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Summary:
        """Run every task `n` times; returns when the collector has acknowledged every root span.

        A run that fails is a result. Cancelled, it ends what runs and sends its root spans before it passes that on.
        Raises InputError before anything starts when a task lacks a field, UnreachableError when spans are not taken.
        """
        runs = iter([run for task in tasks for run in self._plan(task, n, split, env or {})])
        results: list[RunResult] = []
        started = time.monotonic()
        stop = asyncio.Event()

        async def work() -> None:
            for run in runs:
                running = asyncio.ensure_future(self._run(run, stop))
                try:
                    await asyncio.shield(running)
                except asyncio.CancelledError:
                    stop.set()
                    await running
                    raise
                finally:
                    if running.done() and running.exception() is None:
                        results.append(running.result())
                        if progress is not None:
                            progress(running.result())

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        await self._require_acknowledgement()
        return Summary(tuple(results), time.monotonic() - started)

    def _plan(self, task: Task, n: int, split: str, env: Mapping[str, str]) -> Iterator[_Run]:
        arguments = tuple(fill(self._arguments, task))
        for _ in range(n):
            yield _Run(task, arguments, split, env, secrets.token_hex(8), SpanContext.new())

    async def _run(self, run: _Run, stop: asyncio.Event) -> RunResult:
        """One run from start to root span. Never cancelled: `stop` ends its agent early."""
        stdout = Output(self._directory / f"{run.rollout_id}.stdout")
        stderr = Output(self._directory / f"{run.rollout_id}.stderr")
        started_ns = time.time_ns()
        status, interruption, message = await self._live(run, stop, stdout, stderr)
        ended_ns = time.time_ns()
        texts = [await self._keep(stream) for stream in (stdout, stderr)]
        outcome, error_type, exit_code = judge(status, interruption)
        if outcome != "succeeded" and not message:
            message = last_words(status, texts[1])
        result = RunResult(
            run.rollout_id,
            run.attempt,
            run.task.id,
            run.split,
            run.context,
            outcome,
            error_type,
            exit_code,
            started_ns,
            ended_ns,
            message,
        )
        if not self._sender.put(root_span(result, *texts)):
            raise UnreachableError(f"the collector at {self._settings.otlp} takes no spans and the queue is full")
        return result

    async def _live(
        self, run: _Run, stop: asyncio.Event, stdout: Output, stderr: Output
    ) -> tuple[int | None, str | None, str]:
        """(exit status, why it was ended from outside, what is to say about it) of one agent, from start to end."""
        own = environment.for_rollout(
            self._settings, run.context, run.rollout_id, run.attempt, run.task.id, split=run.split
        )
        env = {**own, **self._env, **run.env}
        try:
            agent = await self._starter.start(run.rollout_id, run.arguments, env, stdout, stderr)
        except SpawnError as error:
            return None, "spawn", str(error)
        ended, stopped = asyncio.ensure_future(agent.wait()), asyncio.ensure_future(stop.wait())
        await asyncio.wait({ended, stopped}, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
        interruption, message = None, ""
        if not ended.done():
            interruption = "interrupted" if stopped.done() else "timeout"
            message = "the launcher was stopped" if stopped.done() else f"not done after {self._timeout_s:g} s"
        stopped.cancel()
        await end_group(agent.pid)
        await asyncio.wait({ended}, timeout=LEFT_OPEN_S)
        status = ended.result() if ended.done() else None  # None: not even SIGKILL has ended it yet
        return status, interruption, message

    async def _keep(self, stream: Output) -> str:
        content = await stream.close(LEFT_OPEN_S)
        if self._data is not None:
            try:
                (self._data / stream.path.name).write_bytes(content)
            except OSError as error:
                raise InputError(f"agents' output cannot be kept in {self._data}: {error.strerror}") from error
        return tail_text(content, stream.total_bytes, SPAN_OUTPUT_BYTES)

    async def _require_acknowledgement(self) -> None:
        flushed = await self._sender.flush(ACKNOWLEDGE_S)
        refused = self._sender.counters.dropped_refused
        if not flushed or refused:
            raise UnreachableError(
                f"the collector at {self._settings.otlp} did not acknowledge every rollout "
                f"(refused {refused}): see its log; runs whose root span is missing count as still running"
            )


def _make_writable(directory: Path) -> None:
    """Raises InputError where agents' output could not be kept: before the first agent, not after it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise InputError(f"--data {directory}: no file can be written there ({error.strerror})") from error


async def run_rollouts(
    tasks: Sequence[Task],
    command: Sequence[str],
    settings: Settings,
    *,
    n: int = 1,
    workers: int = 8,
    timeout_s: float = 120.0,
    split: str = "train",
    warm: bool = False,
    env: Mapping[str, str] | None = None,
    data: Path | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Run `command` `n` times on each task, once and for all. Arguments and errors as of `Launcher`."""
    launcher = Launcher(command, settings, workers=workers, timeout_s=timeout_s, warm=warm, env=env, data=data)
    async with launcher:
        return await launcher.run(tasks, n=n, split=split, progress=progress)
