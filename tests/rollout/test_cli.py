"""`tracegrad rollout` as a process: what it prints, its status, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Receiver

from tracegrad.settings import Settings

AGENT = (
    "import os, sys, time; print('agent', sys.argv[1], os.environ['COLOUR']); "
    "time.sleep(600 if sys.argv[1] == 'slow' else 0); sys.exit(sys.argv[1] == 'bad')"
)
COMMAND = ("--env", "COLOUR=red", "--", sys.executable, "-S", "-c", AGENT, "{q}")


def start(directory: Path, tasks: str, *arguments: str) -> subprocess.Popen[str]:
    (directory / "tasks.jsonl").write_text(tasks)
    return subprocess.Popen(
        [sys.executable, "-m", "tracegrad", "rollout", "--tasks", "tasks.jsonl", *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(directory: Path, tasks: str, *arguments: str) -> tuple[int, str, str]:
    process = start(directory, tasks, *arguments)
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, stdout, stderr


def test_json_for_programs_and_a_line_for_each_run(settings: Settings, receiver: Receiver, tmp_path: Path) -> None:
    tasks = '{"id": "x", "q": "good"}\n{"id": "y", "q": "bad"}\n'
    status, stdout, stderr = run(tmp_path, tasks, "--n", "2", "--json", *COMMAND)
    assert status == 0, stderr
    summary = json.loads(stdout)
    assert {key: summary[key] for key in ("total", "succeeded", "failed", "timeout", "errors")} == {
        "total": 4,
        "succeeded": 2,
        "failed": 2,
        "timeout": 0,
        "errors": {"exit_code": 2},
    }
    stored = {span.attributes["tracegrad.rollout.id"]: span for span in receiver.named("rollout")}
    assert set(stored) == set(summary["rollout_ids"])
    outputs = {span.attributes["tracegrad.rollout.stdout"] for span in stored.values()}
    assert outputs == {"agent good red\n", "agent bad red\n"}
    assert len(stderr.splitlines()) == 4
    assert "task=y" in stderr
    assert "status=failed error=exit_code" in stderr


def test_a_sentence_for_people(settings: Settings, tmp_path: Path) -> None:
    status, stdout, _ = run(tmp_path, '{"q": "good"}\n', *COMMAND)
    assert status == 0
    assert stdout.startswith("1 rollouts in ")
    assert stdout.endswith("/s): 1 succeeded\n")


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (('{"q": "a"}\nnonsense\n', *COMMAND), 1, "tracegrad: tasks.jsonl, line 2: not JSON"),
        (('{"x": "a"}\n', *COMMAND), 1, "has no field 'q'"),
        (('{"q": "a"}\n', "--data", "/proc/x", *COMMAND), 1, "tracegrad: --data /proc/x: no file can be written there"),
        (('{"q": "a"}\n', "--data", "tasks.jsonl", *COMMAND), 1, "tracegrad: --data tasks.jsonl: no file can be"),
        (('{"q": "a"}\n', "--", "no-such-agent"), 1, "tracegrad: no program 'no-such-agent' to run"),
        (('{"q": "a"}\n', "--env", "COLOUR", "--", "true"), 2, "is not KEY=VALUE"),
        (('{"q": "a"}\n', "--split", "test", "--", "true"), 2, "--split"),
    ],
)
def test_bad_input_starts_nothing(
    settings: Settings, receiver: Receiver, tmp_path: Path, *, arguments: Any, status: int, complaint: str
) -> None:
    returned, stdout, stderr = run(tmp_path, *arguments)
    assert (returned, stdout) == (status, "")
    assert complaint in stderr
    assert status == 2 or len(stderr.splitlines()) == 1
    assert receiver.spans == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_agents_stores_their_runs_and_is_status_130(
    settings: Settings, receiver: Receiver, tmp_path: Path, number: signal.Signals
) -> None:
    process = start(tmp_path, '{"q": "good"}\n{"q": "slow"}\n', "--workers", "1", *COMMAND)
    assert process.stderr is not None
    assert "status=succeeded" in process.stderr.readline()
    time.sleep(0.5)
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "error=interrupted" in stderr
    assert stderr.splitlines()[-1] == "tracegrad: interrupted"
    assert "Traceback" not in stderr
    stored = [span.attributes.get("error.type") for span in receiver.named("rollout")]
    assert stored == [None, "interrupted"]
    assert not [line for line in _command_lines() if AGENT in line and line.endswith("slow")]


def _command_lines() -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
        except OSError:
            continue  # ended meanwhile
    return lines
