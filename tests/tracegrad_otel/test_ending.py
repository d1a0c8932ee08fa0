"""Spans survive every end of a process but SIGKILL, and the end looks as it does without instrumentation."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Receiver

BIN = Path(sys.executable).parent
SPAN = """
import multiprocessing, os, signal, sys, threading, time
from opentelemetry import trace
def work(name):
    with trace.get_tracer("agent").start_as_current_span(name):
        pass
"""
LONG_DELAY = "60000"
"""So that nothing is exported but by the flush at the end."""


def test_os_exit_and_forked_children_flush(run: Any, receiver: Receiver) -> None:
    source = SPAN + (
        "work('before')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    work('forked')\n"
        "    os._exit(5)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5\n"
        "context = multiprocessing.get_context('fork')\n"
        "child = context.Process(target=work, args=('multiprocessing',))\n"
        "child.start(); child.join()\n"
        "work('last')\n"
        "os._exit(3)\n"
    )
    result = run(source, OTEL_BSP_SCHEDULE_DELAY=LONG_DELAY)
    assert (result.returncode, result.stderr) == (3, "")
    (root,) = receiver.named("run agent.py")
    names = {"before", "forked", "multiprocessing", "last"}
    assert {span.name for span in receiver.spans} == {*names, "run agent.py"}
    assert {span.parent_id for span in receiver.spans if span.name in names} == {root.span_id}
    assert len(receiver.spans) == 5


def test_parent_and_forked_child_do_not_share_a_connection(run: Any, receiver: Receiver) -> None:
    source = SPAN + (
        "from opentelemetry.trace import get_tracer_provider\n"
        "work('opens the connection'); get_tracer_provider().force_flush()\n"
        "pids = []\n"
        "for child in range(3):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        for number in range(30):\n"
        "            work(f'child {child} {number}'); get_tracer_provider().force_flush()\n"
        "        os._exit(0)\n"
        "    pids.append(pid)\n"
        "for number in range(30):\n"
        "    work(f'parent {number}'); get_tracer_provider().force_flush()\n"
        "print([os.waitpid(pid, 0)[1] for pid in pids])\n"
    )
    result = run(source)
    assert (result.stdout, result.stderr) == ("[0, 0, 0]\n", "")
    assert len({span.name for span in receiver.spans}) == len(receiver.spans) == 1 + 4 * 30 + 1


@pytest.mark.parametrize("handler", ["none", "own"])
def test_sigterm_flushes_and_kills_as_before(
    environment: dict[str, str], receiver: Receiver, tmp_path: Path, handler: str
) -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" if handler == "own" else ""
    script = tmp_path / "agent.py"
    script.write_text(SPAN + own + "work('done')\nprint('ready', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [BIN / "opentelemetry-instrument", sys.executable, script],
        env=environment | {"OTEL_BSP_SCHEDULE_DELAY": LONG_DELAY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (7 if handler == "own" else -signal.SIGTERM, b"")
    assert {span.name for span in receiver.spans} == {"done", "run agent.py"}


def test_sigterm_while_the_collector_hangs_takes_less_than_the_launchers_grace(
    environment: dict[str, str], receiver: Receiver, tmp_path: Path
) -> None:
    receiver.hang_s = 30
    script = tmp_path / "agent.py"
    script.write_text(SPAN + "work('done')\ntime.sleep(1)\nprint('ready', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [BIN / "opentelemetry-instrument", sys.executable, script], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    started = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    assert time.monotonic() - started < 2.0
    process.stdout.close()
