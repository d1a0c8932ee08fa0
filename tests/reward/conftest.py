"""A real collector with its embedded ClickHouse, as a process; rollouts that are sent to it, and rules."""

import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_rollout import Recorder
from reward_collector import Collector

from reward.rules.file import load as load_rules
from tracegrad.settings import Settings

START_S = 90


@pytest.fixture(scope="module")
def settings(free_port: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings whose collector and store are running."""
    directory = tmp_path_factory.mktemp("collector")
    otlp, clickhouse = free_port(), free_port()
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tracegrad", "collector", "--data", str(directory / "store")),
                *("--otlp-http-port", str(otlp), "--otlp-grpc-port", "0", "--clickhouse-port", str(clickhouse)),
            ],
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    chosen = Settings(otlp=f"http://127.0.0.1:{otlp}", clickhouse=f"http://127.0.0.1:{clickhouse}")
    deadline = time.monotonic() + START_S
    while not (_answers(f"{chosen.clickhouse}/ping") and _answers(f"{chosen.otlp}/")):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    yield chosen
    process.terminate()
    process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@pytest.fixture
def recorder(settings: Settings) -> Recorder:
    """A rollout of its own, that began a minute ago."""
    return Recorder(Collector(settings), start=time.time_ns() - 60_000_000_000)


@pytest.fixture
def rules(tmp_path: Path) -> Any:
    """A function that makes rules of TOML."""

    def make(text: str) -> Any:
        file = tmp_path / f"{secrets.token_hex(4)}.toml"
        file.write_text(text)
        return load_rules(file)

    return make
