"""A forked agent: the program as `__main__`, from a process that already holds its imports, to its exit status.

What the program sees is what `python SCRIPT` (or `python -m MODULE`) would have shown it: arguments, environment,
standard streams, `__main__`, tracebacks, exit handlers and threads at the end. Agents share no random state.
"""

import atexit
import builtins
import contextlib
import logging
import os
import random
import runpy
import signal
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NoReturn

log = logging.getLogger("opentelemetry.tracegrad_otel")

FLUSH_FAILED = 120  # CPython's status when standard output could not be written at the end
CANNOT_START = 126


@dataclass
class Program:
    """What agents run: `name` as given on the command line; a module or a script, and its source file if known."""

    name: str
    module: str | None
    file: Path | None
    code: types.CodeType | None = None

    def compile(self) -> None:
        """Compile a script once for all agents; modules are found and compiled by Python's own `-m`."""
        if self.module is None and self.file is not None:
            loader = SourceFileLoader("__main__", str(self.file))
            self.code = loader.source_to_code(loader.get_data(str(self.file)), str(self.file))


@dataclass(frozen=True)
class Job:
    """One agent to run. `env` changes the parent's environment: None removes a variable."""

    id: str
    argv: Sequence[str] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    cwd: str | None = None
    stdout: str = os.devnull
    stderr: str = os.devnull


def run_agent(program: Program, job: Job) -> NoReturn:
    """Be the agent, from fork to exit."""
    status = CANNOT_START
    try:
        _enter(job)
        sys.argv = [program.name, *job.argv]
        status = _run_main(program)
        status = _finish(status)
    except OSError as error:
        sys.stderr.write(f"tracegrad_otel.warm: cannot start {program.name}: {error}\n")
    finally:
        _flush_output()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        # Without the interpreter's teardown, which would only copy the parent's pages in order to free them.
        os._exit(status)


def _enter(job: Job) -> None:
    os.setpgid(0, 0)
    for path, descriptor in ((job.stdout, 1), (job.stderr, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    if job.cwd is not None:
        os.chdir(job.cwd)
    for name, value in job.env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    _join_telemetry()


def _join_telemetry() -> None:
    """What opentelemetry-instrument left to the agent; nothing where the parent runs without it."""
    distro = sys.modules.get("tracegrad_otel.distro")
    if distro is None:
        return
    try:
        distro.configure_process()
    except Exception:  # as in a fresh process: an agent runs on when its instrumentation cannot start
        log.exception("could not start OpenTelemetry in a forked agent")


def _run_main(program: Program) -> int:
    """Run the program as `__main__`. Its exit status, or the negative number of the signal it is to die of."""
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    try:
        if program.code is not None and program.file is not None:
            vars(main).update(
                __file__=str(program.file),
                __cached__=None,
                __loader__=SourceFileLoader("__main__", str(program.file)),
            )
            exec(program.code, vars(main))  # noqa: S102 - the program that the user asked us to run
        else:
            runpy._run_module_as_main(program.module)  # type: ignore[attr-defined]  # this is `python -m` itself
    except SystemExit as request:
        return _exit_status(request)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does at the top of a program
        _show(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _exit_status(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{request.code}\n")
    return 1


def _show(error: BaseException) -> None:
    """Report an exception as the interpreter does, without the frame of ours that ran the program."""
    shown = error.__traceback__.tb_next if error.__traceback__ is not None else None
    error = error.with_traceback(shown)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, shown
    try:
        sys.excepthook(type(error), error, shown)
    except Exception:  # noqa: BLE001 - the agent's own hook is broken
        traceback.print_exception(error)


def _finish(status: int) -> int:
    """Threads, exit handlers, standard streams: in the interpreter's order."""
    threading._shutdown()  # type: ignore[attr-defined]  # joins all but daemon threads
    atexit._run_exitfuncs()
    return status if _flush_output() else FLUSH_FAILED


def _flush_output() -> bool:
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            flushed = False
    return flushed
