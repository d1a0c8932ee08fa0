"""`tracegrad demo`, shortened: interrupted in the middle it stops everything; the same command then goes through."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DEMO = ("-m", "tracegrad", "demo", "--seed", "5", "--steps", "1", "--n-eval", "12", "--warm-steps", "100")
DEADLINE_S = 300


def test_the_demo_stops_on_ctrl_c_and_then_runs_to_its_report(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        demo = subprocess.Popen(
            [sys.executable, *DEMO], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + DEADLINE_S
        while "3. the untouched agent" not in log.read_text():
            assert demo.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        time.sleep(3)  # in the middle of the first rollouts
        started = _session_leaders(demo.pid)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 1, log.read_text()
    assert log.read_text().splitlines()[-1] == (
        "tracegrad: interrupted; everything is stopped, and `tracegrad demo --seed 5` starts again"
    )
    assert len(started) >= 4, "collector, vLLM, sidecar and at least the trainer or the launcher ran"
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]

    again = subprocess.run(
        [sys.executable, *DEMO],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "keeping the warm-started model of an earlier run" in again.stdout
    report = json.loads((tmp_path / "demo-report" / "report.json").read_text())
    assert (report["seed"], report["steps"], report["n_eval"]) == (5, 1, 12)
    assert 0 <= report["accuracy_before"] <= 1
    assert 0 <= report["accuracy_after"] <= 1
    assert 0 < report["seconds"] < DEADLINE_S
    assert 1 << 30 < report["peak_memory_bytes"] < 12 << 30
    text = (tmp_path / "demo-report" / "report.md").read_text()
    assert "tracegrad.sidecar" in text, "the third question is answered by the spans of a run"


def _session_leaders(pid: int) -> list[int]:
    """The processes that `pid` has started in sessions of their own."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in children if os.getsid(child) == child]
