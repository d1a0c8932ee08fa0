"""The JavaScript client, unmodified, from npm. Skipped, with the reason, where Node.js or a registry is missing."""

import json
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "@clickhouse/client@1.23.1"
SCRIPT = Path(__file__).parent / "javascript" / "ask.mjs"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the client installed and the script in it."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs node and npm")
    directory = tmp_path_factory.mktemp("javascript")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", PACKAGE]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {PACKAGE} within 30 s: no registry?")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr.strip()[-300:]}")
    shutil.copy(SCRIPT, directory)
    return directory


def test_the_javascript_client(collector: Any, home: Path) -> None:
    table = f"js_{secrets.token_hex(4)}"
    arguments = [collector.clickhouse, collector.writer["X-ClickHouse-Key"], table]
    done = subprocess.run(
        ["node", SCRIPT.name, *arguments], cwd=home, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    empty = found.pop("empty")
    assert (empty["rows"], empty["data"], empty["meta"]) == (0, [], [{"name": "k", "type": "UInt32"}])
    assert found == {
        "ping": True,
        "rows": [{"k": 2, "v": "zwei \t\n'"}, {"k": 3, "v": "three"}],
        "queryIdLength": 36,
        "whole": [{"n": 3}],
        "streamed": 1_000_000,
        "midStream": "395",
        "error": "60",
        "readonly": "164",
        "wrongPassword": "516",
        "multi": "62",
        "killed": "394",
        "exported": "1\tone\n2\tzwei \\t\\n\\'\n3\tthree\n",
    }
    deadline = time.monotonic() + 20
    running = f"SELECT count() FROM system.processes WHERE Settings['log_comment'] = '{table}-aborted'"
    while collector.sql(running) != "0":
        assert time.monotonic() < deadline
        time.sleep(0.05)
