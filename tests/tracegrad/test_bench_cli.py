"""`tracegrad bench` as people and programs run it: real processes, small figures."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tracegrad.bench import machine

COMMAND = (sys.executable, "-m", "tracegrad", "bench")
PROMISED = {
    *("added_latency_p50_ms", "added_latency_p99_ms", "requests_per_s_per_core", "cpu_ratio_to_minimal_proxy"),
    *(
        "stream_chunks_per_s_per_core",
        "added_first_chunk_ms",
        "rss_growth_bytes_per_call",
        "bytes_ratio_32_to_16_turns",
    ),
    *("rollout_cpu_ms_per_call", "rollout_requests_per_s_per_core", "rollout_rss_growth_bytes_per_call"),
    *("rollout_added_latency_p50_ms", "rollout_added_latency_p99_ms"),
}
"""Names that other programs rely on."""


def bench(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=cwd,
    )


def test_without_a_part_they_are_listed() -> None:
    result = bench()
    assert result.returncode == 0
    for part in ("sidecar", "collector", "transitions", "training", "all"):
        assert re.search(rf"^{part} ", result.stdout, re.MULTILINE)
    for part in ("sidecar", "collector", "transitions"):
        line = next(line for line in result.stdout.splitlines() if line.startswith(part))
        assert "(not available yet)" not in line


def test_help_has_an_example() -> None:
    assert re.search(r"Example:\s+tracegrad bench\b", bench("--help", COLUMNS="80").stdout)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("training",), 1, "`tracegrad bench training` is not available yet"),
        (("kitchen",), 2, "no part is called 'kitchen'"),
        (("sidecar", "--peer", "litellm"), 2, "'litellm' is not NAME=PYTHON"),
        (("sidecar", "--peer", "nobody=python3"), 1, "no peer is called 'nobody'"),
        (("sidecar", "--config", "absent.toml"), 1, "no configuration file at absent.toml"),
    ],
)
def test_what_cannot_be_measured_is_told(arguments: tuple[str, ...], status: int, said: str) -> None:
    result = bench(*arguments)
    assert result.returncode == status
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_a_quick_run_finds_everything_that_was_promised(tmp_path: Path) -> None:
    config = tmp_path / "tracegrad.toml"
    access_log = tmp_path / "access.jsonl"
    config.write_text(f'[sidecar]\naccess_log = "{access_log}"\nport = 1\nadmin_key = "secret"\n')
    result = bench("all", "--quick", "--json", "--report", "report", "--config", str(config), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["sidecar"]
    assert found.keys() >= PROMISED
    assert all(isinstance(value, int | float) or not machine.LINUX for value in found.values())
    assert (found["spans_lost"], found["trainable_share"]) == (0, 1)
    assert 1 < found["bytes_ratio_32_to_16_turns"] <= 2.2
    assert found["added_latency_p50_ms"] > 0
    assert found["requests_per_s"] > 0
    assert found["rollout_requests_per_s"] > 0
    assert found["rollout_continued_share"] > 0.5, "rollouts are continued by their tokens"
    assert access_log.read_text().count("\n") >= found["spans_delivered"], "the settings of the file were measured"
    assert "one call at a time: sidecar" in result.stderr.splitlines()
    assert "sidecar: loads of less than 1 s show that the bench works" in result.stderr
    assert json.loads(result.stdout)["collector"].keys() >= {"engine_limit_ratio", "ack_p99_ms", "rss_bytes"}
    written = json.loads((tmp_path / "report" / "bench.json").read_text())
    assert written["parts"]["sidecar"]["metrics"] == found
    assert written["parts"]["sidecar"]["goals"]["cpu_ratio_to_minimal_proxy"] == "<= 1.7"
    assert written["machine"]["cores"] >= 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*COMMAND, "sidecar", "--quick"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "sidecar" not in process.stderr.readline():
        assert process.poll() is None
    children = _children(process.pid)
    assert len(children) >= 3, "stand-in, least proxy and sidecar"
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "tracegrad: interrupted"
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(tmp_path.iterdir()) == []


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
