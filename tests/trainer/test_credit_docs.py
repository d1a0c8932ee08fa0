"""docs/credit.md: every command on the page runs, its settings are settings, its schemes and estimators are ours."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from training_world import World
from typer.testing import CliRunner

from tracegrad.cli import app
from trainer.advantage import ESTIMATORS
from trainer.config import TrainConfig, load
from trainer.credit import SCHEMES

TEXT = (Path(__file__).parents[2] / "docs" / "credit.md").read_text()
COMMANDS = re.findall(r"^    (tracegrad .*)$", TEXT, re.MULTILINE)
SETTINGS = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
(SCHEME,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
STEP = "3f0c9a52d1e87b64"


def test_every_scheme_and_estimator_is_one_row_of_a_table() -> None:
    assert set(re.findall(r"^\| `(\w+)`", TEXT, re.MULTILINE)) == SCHEMES.keys() | ESTIMATORS.keys()


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_are_settings(settings: str) -> None:
    told = tomllib.loads(settings)
    read = TrainConfig.model_validate(told | {"engine": {"model": "m"}}).model_dump(mode="json")
    for section, values in told.items():
        for name, value in values.items():
            assert read[section][name] == value


def test_what_is_told_to_be_run_runs(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = f"{SETTINGS[1]}\n[engine]\nmodel = 'm'\n".replace("[data]", f'[data]\npolicy = "{world.agents.policy}"')
    (tmp_path / "train.toml").write_text(job)
    assert load(tmp_path / "train.toml").data.reward_set == "careful"
    monkeypatch.chdir(tmp_path)
    with world.agents.together():
        world.agents.pair("capital-7")
    (step,) = world.train()
    assert len(COMMANDS) == 7
    assert sum(STEP in command for command in COMMANDS) == 1
    for command in COMMANDS:
        _, *arguments = shlex.split(command.replace(STEP, step.step_id))
        done = run(world, *arguments)
        assert done.exit_code == 0, (command, done.output)


def test_a_scheme_of_ones_own(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "scheme_of_the_docs.py").write_text(SCHEME)
    good, _ = world.agents.pair("one")
    done = run(world, "transitions", "--json", "--rollout", good, "--credit", "scheme_of_the_docs:last_call_only")
    assert [json.loads(line)["credit"] for line in done.stdout.splitlines()] == [0.0, 1.0], done.output


def run(world: World, *arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env={"TRACEGRAD_CLICKHOUSE": world.agents.collector.clickhouse})
