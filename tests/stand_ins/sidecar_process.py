"""A sidecar as its users run it: the command, in a process of its own, with what it says in a file."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

COMMAND = (sys.executable, "-c", "from tracegrad.cli import main; main()", "sidecar")


async def until(condition: Callable[[], object], limit_s: float = 20) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(0.02)


def alive(pids: list[int]) -> bool:
    """Whether any of the processes lives."""
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


@dataclass
class SidecarProcess:
    """A running one. `said`: the file with its standard error."""

    process: asyncio.subprocess.Process
    url: str
    admin: str
    said: Path

    async def told(self, text: str, times: int = 1) -> str:
        """What it has said, once `text` is in it so often."""
        await until(lambda: self.said.read_text().count(text) >= times)
        return self.said.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit status, once it has ended."""
        return await asyncio.wait_for(self.process.wait(), 30)

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]


@contextlib.asynccontextmanager
async def sidecar_process(config: Path, *options: str) -> AsyncIterator[SidecarProcess]:
    """The command with this configuration, once it is ready. Killed at the end, and its workers with it."""
    said = config.with_name(f"said-{os.urandom(3).hex()}.log")
    with said.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(*COMMAND, "--config", str(config), *options, stderr=errors)
    running = SidecarProcess(process, "", "", said)
    try:
        async with asyncio.timeout(40):
            while (ready := re.search(r"sidecar ready port=(\d+) admin_port=(\d+)\n", said.read_text())) is None:
                assert process.returncode is None, said.read_text()
                await asyncio.sleep(0.02)
        running.url, running.admin = (f"http://127.0.0.1:{port}" for port in ready.groups())
        yield running
    finally:
        workers = running.workers() if process.returncode is None else []
        for pid in (process.pid, *workers):
            with contextlib.suppress(ProcessLookupError):
                if pid != process.pid or process.returncode is None:
                    os.kill(pid, signal.SIGKILL)
        await process.wait()


def configuration(directory: Path, otlp: str, *models: dict[str, Any], **sidecar: Any) -> Path:
    """A configuration file in a directory, written anew."""
    values = {"port": 0, "admin_port": 0, "data": str(directory / "data"), "weights": str(directory / "weights")}
    lines = [f'otlp = "{otlp}"', "[sidecar]", *_toml(values | sidecar)]
    for model in models:
        lines += ["[[model]]", *_toml(model)]
    file = directory / "tracegrad.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def _toml(values: dict[str, Any]) -> list[str]:
    # For these values TOML is written as JSON is.
    return [f"{name} = {orjson.dumps(value).decode()}" for name, value in values.items()]
