"""docs/rewards.md: its rules are rules, its settings theirs, its commands and queries run, its function too."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recorded_rollout import Recorder
from reward_collector import Collector

from reward.rules.file import load
from reward.rules.kinds import KINDS
from reward.rules.settings import OwnSettings
from tracegrad import clickhouse
from tracegrad.delivered import wait_until_delivered
from tracegrad.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "rewards.md").read_text()
RULES, OWN = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^    (tracegrad .*)$", TEXT, re.MULTILINE)


def test_every_rule_and_setting_is_one_row_of_the_table() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", TEXT, re.MULTILINE))
    assert rows.keys() == KINDS.keys()
    for kind, told in rows.items():
        settings = set(re.findall(r"`(\w+)`", told))
        assert settings == set(KINDS[kind].settings.model_fields) - {"weight", "cap"}


def test_links_are_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / "docs" / target).resolve().exists(), target


def run(line: str, directory: Path, settings: Settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *shlex.split(line)],
        cwd=directory,
        env=os.environ | {"TRACEGRAD_OTLP": settings.otlp, "TRACEGRAD_CLICKHOUSE": settings.clickhouse},
        capture_output=True,
        text=True,
        check=False,
    )


async def test_what_is_told_to_be_run_runs(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULES + OWN)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "my_rules.py").write_text(code)
    recorder = Recorder(Collector(settings), start=time.time_ns() - 60_000_000_000)
    call = recorder.call(OUTPUT_TOKENS=501, INPUT_TOKENS=0)
    recorder.send(call, recorder.root_span())
    assert await wait_until_delivered(settings)
    assert len(COMMANDS) == 4
    for line in COMMANDS:
        ran = run(line, tmp_path, settings)
        assert ran.returncode == 0, (line, ran.stderr)
    client = clickhouse.connect(settings.clickhouse)
    found = client.query(
        "SELECT name, score, explanation FROM rewards WHERE rollout_id = {rollout:String} ORDER BY name",
        parameters={"rollout": recorder.rollout_id},
    ).result_rows
    client.close()
    assert [name for name, _, _ in found] == ["rule.cost", "rule.wordy"]
    assert found[1][1:] == (-0.1, "501 tokens")


def test_settings_of_a_rule_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(OWN.replace("my_rules:wordy", "json:dumps"))
    monkeypatch.setattr("sys.path", [*sys.path])
    (rule,) = load(file)
    assert isinstance(rule.settings, OwnSettings)
    assert rule.find is json.dumps
