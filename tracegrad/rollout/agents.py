"""Agent processes: started one by one, or forked by a parent that has imported the agent's libraries.

Each agent leads a process group, so that ending a run ends whatever the agent has started.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tracegrad.errors import TracegradError
from tracegrad.rollout.output import Output

GRACE_S = 2.0
"""Between SIGTERM and SIGKILL: enough for a last export of spans."""

PARENT_START_S = 180.0


class SpawnError(TracegradError):
    """An agent's process could not be started."""


class ParentEndedError(TracegradError):
    """The process that forks agents is gone, and with it the way to start any."""

    def __init__(self) -> None:
        super().__init__("the parent of the forked agents has ended: run again, or leave --warm out")


class Agent(Protocol):
    """A started agent."""

    pid: int

    async def wait(self) -> int:
        """Its exit status; negative: the signal it died of."""


class Starter(Protocol):
    """How agents are started. `env` is what differs from the environment that all agents share; None removes."""

    async def start(
        self, run_id: str, arguments: Sequence[str], env: Mapping[str, str | None], stdout: Output, stderr: Output
    ) -> Agent: ...

    async def close(self) -> None: ...


class SeparateAgents:
    """A process each, as from a shell."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    async def start(
        self, run_id: str, arguments: Sequence[str], env: Mapping[str, str | None], stdout: Output, stderr: Output
    ) -> Agent:
        """Run `arguments` as a command. Raises SpawnError."""
        environment = {name: value for name, value in {**self._environment, **env}.items() if value is not None}
        try:
            return await asyncio.create_subprocess_exec(
                *arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout.write_end,
                stderr=stderr.write_end,
                start_new_session=True,
            )
        except OSError as error:
            raise SpawnError(f"{arguments[0]}: {error.strerror or error}") from error

    async def close(self) -> None:
        """Nothing to close."""


@dataclass
class _ForkedAgent:
    pid: int
    ended: asyncio.Future[int]

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)


class ForkedAgents:
    """Agents forked by `python -m tracegrad_otel.warm`, which speaks JSON lines: see there."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: Output) -> None:
        self._process = process
        self._stderr = stderr
        self._started: dict[str, asyncio.Future[_ForkedAgent]] = {}
        self._running: dict[str, _ForkedAgent] = {}
        self._reports = asyncio.create_task(self._follow(), name="forked-agents")

    @staticmethod
    async def open(command: Sequence[str], environment: Mapping[str, str], directory: Path) -> "ForkedAgents":
        """Start the parent and wait until it has imported everything. Raises TracegradError with its last words."""
        stderr = Output(directory / "parent.stderr")
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr.write_end,
            start_new_session=True,
        )
        assert process.stdout is not None  # noqa: S101 - asked for above
        try:
            line = await asyncio.wait_for(process.stdout.readline(), PARENT_START_S)
        except TimeoutError:
            line = b""
        except BaseException:
            await end_group(process.pid)
            await stderr.close(0)
            raise
        if not line.startswith(b'{"ready"'):
            await end_group(process.pid)
            await process.wait()
            said = (await stderr.close(GRACE_S)).decode("utf-8", "replace").strip().splitlines()
            raise TracegradError(f"agents cannot be forked: {said[-1] if said else 'their parent does not answer'}")
        return ForkedAgents(process, stderr)

    async def start(
        self, run_id: str, arguments: Sequence[str], env: Mapping[str, str | None], stdout: Output, stderr: Output
    ) -> Agent:
        """Have an agent forked. Raises SpawnError; ParentEndedError when none can be forked any more."""
        if self._reports.done():
            raise ParentEndedError
        job = {"id": run_id, "argv": list(arguments), "env": dict(env)}
        job |= {"cwd": str(Path.cwd()), "stdout": str(stdout.path), "stderr": str(stderr.path)}
        self._started[run_id] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None  # noqa: S101 - asked for in `open`
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            await self._process.stdin.drain()
            return await self._started[run_id]
        except ConnectionError as error:
            raise ParentEndedError from error
        finally:
            self._started.pop(run_id, None)

    async def _follow(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - asked for in `open`
        async for line in self._process.stdout:
            self._take(json.loads(line))
        self._refuse("the parent of the forked agents has ended")
        for agent in self._running.values():
            agent.ended.set_result(-signal.SIGKILL)  # nobody can tell; the group is ended after this

    def _take(self, report: Mapping[str, Any]) -> None:
        if "id" not in report:
            self._refuse(report["error"])
            return
        run_id = report["id"]
        started = self._started.get(run_id)
        if "pid" in report:
            agent = _ForkedAgent(report["pid"], asyncio.get_running_loop().create_future())
            self._running[run_id] = agent
            if started is not None and not started.done():
                started.set_result(agent)
        elif "error" in report:
            if started is not None and not started.done():
                started.set_exception(SpawnError(report["error"]))
        else:
            status = -report["signal"] if "signal" in report else report["exit_code"]
            self._running.pop(run_id).ended.set_result(status)

    def _refuse(self, why: str) -> None:
        for started in self._started.values():
            if not started.done():
                started.set_exception(SpawnError(why))

    async def close(self) -> None:
        """End the parent, and with it whatever it still runs."""
        assert self._process.stdin is not None  # noqa: S101 - asked for in `open`
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 3 * GRACE_S)
        except TimeoutError:
            await end_group(self._process.pid)
        await self._reports
        await self._stderr.close(GRACE_S)


async def end_group(pid: int) -> None:
    """SIGTERM, and after a grace SIGKILL, to what is left of a process group; returns when it is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_S
        with contextlib.suppress(PermissionError):  # only zombies are left, on some systems
            try:
                os.killpg(pid, number)
                while time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                    os.killpg(pid, 0)
            except ProcessLookupError:
                return
