"""Processes that a bench starts: each on its cores and in a session of its own, all of it ended with the block.

They end too when this process is killed (Linux). What they say goes into a file, whose end is shown when they fail.
"""

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracegrad import services
from tracegrad.bench import machine
from tracegrad.errors import TracegradError

START_S, STOP_S, POLL_S = 60.0, 30.0, 0.05
LOG_TAIL = 500


@dataclass(frozen=True)
class Running:
    """A process that was started. `log`: what it says."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pids(self) -> list[int]:
        """It and all that it has started."""
        return machine.session(self.process.pid)

    def failure(self, what: str) -> TracegradError:
        """An error with the end of what it said."""
        said = " ".join(self.log.read_text(errors="replace").split())[-LOG_TAIL:]
        return TracegradError(f"{self.name} {what}; it said: {said or 'nothing'}")

    def check(self) -> None:
        """Raises TracegradError where it has died."""
        if (status := self.process.poll()) is not None:
            raise self.failure(f"ended with status {status}")


@contextlib.contextmanager
def started(
    name: str,
    argv: Sequence[str],
    directory: Path,
    cores: Collection[int],
    environment: Mapping[str, str] | None = None,
    *,
    talks: bool = False,
) -> Iterator[Running]:
    """A process while the block runs. `talks`: its input and output are pipes."""
    log = directory / f"{name.replace(' ', '-')}.log"
    with machine.on(cores), log.open("ab") as said:
        process = subprocess.Popen(
            argv,
            env=_environment(environment or {}),
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else said,
            stderr=said,
            cwd=directory,
            start_new_session=True,  # Ctrl-C is for us; we stop it in order
            preexec_fn=_stop_with_parent if machine.LINUX else None,  # noqa: PLW1509 - one C call
        )
    running = Running(name, process, log)
    try:
        yield running
    finally:
        _stop(process)


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Ours, without settings of tracegrad's and without a proxy between us and loopback."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRACEGRAD_")}
    here = "127.0.0.1,localhost"
    return {**kept, "NO_PROXY": here, "no_proxy": here, "PYTHONUNBUFFERED": "1", **more}


def _stop_with_parent() -> None:
    """In the child, before exec: be asked to stop when the parent dies, however it dies."""
    services.LIBC.prctl(services.PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the leader, then SIGKILL to whatever of its session is left."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses where all of it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def our_own(
    module: str, arguments: Sequence[str], directory: Path, cores: Collection[int]
) -> Iterator[tuple[Running, int]]:
    """A server of this package, and the port that it printed."""
    name = module.replace("_", " ")
    argv = [sys.executable, "-m", f"tracegrad.bench.{module}", *arguments]
    with started(name, argv, directory, cores, talks=True) as running:
        output = running.process.stdout
        assert output is not None  # noqa: S101 - it is a pipe
        line = output.readline() if select.select([output], [], [], START_S)[0] else b""
        if not line.strip().isdigit():
            running.check()
            raise running.failure("did not start")
        yield running, int(line)


def wait_for(running: Running, port: int, path: str, limit_s: float = START_S) -> None:
    """Until it answers there with 200. Raises TracegradError where it dies or takes too long."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        running.check()
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ask(port, "GET", path)[0] == 200:
                return
        time.sleep(POLL_S)
    raise running.failure(f"did not answer on {path} within {limit_s:.0f} s")


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One request to a process of ours: status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def tell(port: int, path: str, value: Any) -> None:
    """POST something as JSON. Raises TracegradError where it is not taken."""
    status, body = ask(port, "POST", path, json.dumps(value).encode())
    if not 200 <= status < 300:
        raise TracegradError(f"POST {path} was answered with status {status}: {body[:300].decode(errors='replace')}")


def free_ports(count: int) -> list[int]:
    """Ports that nobody has at the moment."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
