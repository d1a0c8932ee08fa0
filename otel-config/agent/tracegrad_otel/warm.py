"""The parent of forked agents: `python -m tracegrad_otel.warm SCRIPT` (or `-m MODULE`).

It imports what the program imports, once, and then forks one agent for each JSON line on stdin:
  {"id": "r1", "argv": ["a question"], "env": {"NAME": "value" or null}, "cwd": "/d", "stdout": "/f", "stderr": "/g"}
It answers on stdout, one JSON line each: {"ready": ...} first; {"id", "pid"} when an agent has started; then
{"id", "exit_code"} or {"id", "signal"} when it has ended, or {"id", "error"} when it could not start.

Invariants: this process runs one thread only, since a fork copies no other; each agent leads a process group, whose id
is its pid; when stdin closes, or on SIGTERM, no agent is left behind.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracegrad_otel.forked import Job, Program, run_agent
from tracegrad_otel.preload import InstalledImports, find_source, import_all, import_late_ones

GRACE_S = 2.0
USAGE = "usage: python -m tracegrad_otel.warm SCRIPT | -m MODULE"


class CannotServeError(Exception):
    """Why no agents can be forked for this program; one line."""


def main() -> None:
    """Serve until stdin closes. In a forked agent this runs the agent and does not return."""
    try:
        program = parse_arguments(sys.argv[1:])
        commands, reports = _take_standard_streams()
        preloaded = preload(program)
    except CannotServeError as error:
        sys.stderr.write(f"tracegrad_otel.warm: {error}\n")
        sys.exit(2)
    gc.collect()
    gc.freeze()  # so that collections in the agents do not copy the parent's pages
    server = ForkServer(commands, reports)
    server.report(ready=True, preloaded=preloaded)
    job = server.serve()
    if job is not None:
        run_agent(program, job)


def parse_arguments(arguments: list[str]) -> Program:
    """The program to fork agents of. Raises CannotServeError."""
    match arguments:
        case ["-m", module]:
            files = find_source(module, sys.path) or []
            return Program("-m", module, files[-1][0] if files else None)
        case [script] if not script.startswith("-"):
            file = Path(script).resolve()
            if not file.is_file():
                raise CannotServeError(f"no file {script}")
            return Program(script, None, file)
    raise CannotServeError(USAGE)


def preload(program: Program) -> int:
    """Import what the program imports and is installed; returns how many modules. Raises CannotServeError."""
    if program.module is None and program.file is not None and not sys.flags.safe_path:
        sys.path[0] = str(program.file.parent)  # as for `python SCRIPT`
    imports = InstalledImports(sys.path)
    try:
        if program.file is not None:
            imports.read(program.file, (program.module or "").rpartition(".")[0])
        program.compile()
    except SyntaxError as error:
        raise CannotServeError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise CannotServeError(f"cannot read {program.file}: {error}") from error
    failed = import_all(list(imports.names))
    import_late_ones()
    running = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if running:
        raise CannotServeError(
            f"an import starts threads ({', '.join(running)}), which forks do not have: run it unforked"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    return len(imports.names) - len(failed)


def _take_standard_streams() -> tuple[int, int]:
    """Descriptors for commands and reports. Whatever else is printed here goes to stderr, never among the reports."""
    commands, reports = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return commands, reports


@dataclass
class ForkServer:
    """The loop. `commands` and `reports` are descriptors."""

    commands: int
    reports: int
    running: dict[int, str] = field(default_factory=dict)
    """Process id of an agent -> id of its job."""

    def __post_init__(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._buffer = b""
        self._stopping = False

    def report(self, **message: Any) -> None:
        """One line to whoever started us; nobody listening any more is found out on stdin."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.reports, json.dumps(message).encode() + b"\n")

    def serve(self) -> Job | None:
        """None when stdin has closed and every agent has ended; in a forked agent, its job."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # its arrival is what wakes the loop
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which ends us
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.commands, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._stopping:
                for key, _ in selector.select():
                    if key.fd == self._wake_read:
                        self._drain_wakeups()
                        continue
                    chunk = os.read(self.commands, 1 << 16)
                    if not chunk:
                        self._stopping = True
                    for line in self._lines(chunk):
                        job = self._start(line)
                        if job is not None:
                            return job
                self._reap()
        self._end_all()
        return None

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 512):
                pass

    def _lines(self, chunk: bytes) -> list[bytes]:
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [line for line in lines if line.strip()]

    def _start(self, line: bytes) -> Job | None:
        """Fork an agent for one command. The job in the agent, None in the parent."""
        try:
            job = Job(**json.loads(line))
        except (ValueError, TypeError) as error:
            self.report(error=f"not a job: {error}")
            return None
        try:
            pid = os.fork()
        except OSError as error:
            self.report(id=job.id, error=f"cannot fork: {error}")
            return None
        if pid == 0:
            self._leave()
            return job
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # as the agent does: whoever comes first, the group exists when we report it
        self.running[pid] = job.id
        self.report(id=job.id, pid=pid)
        return None

    def _leave(self) -> None:
        """In the agent: nothing of the server's descriptors and signal handlers remains."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in (self.commands, self.reports, self._wake_read, self._wake_write):
            os.close(descriptor)

    def _reap(self) -> None:
        for pid in list(self.running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == 0:
                continue
            code = os.waitstatus_to_exitcode(status)
            ending = {"signal": -code} if code < 0 else {"exit_code": code}
            self.report(id=self.running.pop(pid), **ending)

    def _end_all(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, number)
            deadline = time.monotonic() + GRACE_S
            while self.running and time.monotonic() < deadline:
                self._reap()
                time.sleep(0.01)


if __name__ == "__main__":
    main()
