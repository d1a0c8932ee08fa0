"""Run `tracegrad` subcommands as a user would: as processes, over the same HTTP and SQL as everyone else."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tracegrad.errors import TracegradError

STOP_TIMEOUT_S = 20.0


class Commands:
    """Subcommands with one configuration file; `log` collects what they print on stderr."""

    def __init__(self, config: Path, environment: Mapping[str, str], log: Path) -> None:
        self._config = config
        self._environment = os.environ | environment
        self._log = log

    async def run_json(self, *arguments: str) -> dict[str, Any]:
        """The JSON object that the subcommand prints."""
        with self._log.open("ab") as log:
            process = await self._start(arguments, asyncio.subprocess.PIPE, log.fileno())
        try:
            output, _ = await process.communicate()
        except BaseException:
            await _stop(process)
            raise
        if process.returncode != 0:
            raise TracegradError(f"`tracegrad {arguments[0]}` failed: {self._last_line()}")
        result: dict[str, Any] = json.loads(output)
        return result

    @asynccontextmanager
    async def background(self, *arguments: str) -> Any:
        """Keep a subcommand running inside the block; yields a function that raises when it has died."""
        with self._log.open("ab") as log:
            process = await self._start(arguments, log.fileno(), log.fileno())

        def check() -> None:
            if process.returncode is not None:
                raise TracegradError(
                    f"`tracegrad {arguments[0]}` stopped with status {process.returncode}: {self._last_line()}"
                )

        try:
            yield check
        finally:
            await _stop(process)

    async def _start(self, arguments: tuple[str, ...], output: int, errors: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tracegrad",
            arguments[0],
            f"--config={self._config}",
            *arguments[1:],
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for us; we stop it in order
        )

    def _last_line(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'it printed nothing'} (log: {self._log})"


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
