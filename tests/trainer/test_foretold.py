"""What `tracegrad transitions --job` and `train --dry-run` say is what the job does."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from training_world import World, changed
from typer.testing import CliRunner

from tracegrad.cli import app
from tracegrad.errors import NothingToTrainError


def listed(world: World, job: Path) -> dict[str, dict[str, Any]]:
    """Span id to what `tracegrad transitions --job` says of it."""
    arguments = ["transitions", "--job", str(job), "--json"]
    done = CliRunner().invoke(app, arguments, env={"TRACEGRAD_CLICKHOUSE": world.agents.collector.clickhouse})
    assert done.exit_code == 0, done.output
    return {line["span_id"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_versions_that_the_job_does_not_know_are_not_called_used(world: World, tmp_path: Path) -> None:
    job = tmp_path / "train.toml"
    engine = world.config.engine
    job.write_text(
        f'job = "{world.config.job}"\n[data]\npolicy = "{world.agents.policy}"\n'
        f'[engine]\nmodel = "{engine.model}"\ncheckpoints = "{engine.checkpoints}"\n'
    )
    world.agents.pair("one")
    world.train()
    with world.agents.together():
        world.agents.pair("two")
        world.agents.run("two", 0.5, version=7)
        world.agents.run("two", 0.5, version=None)
    foretold = listed(world, job)
    world.train()
    trained = {row["span_id"]: row for row in world.samples()}
    assert {span: line["drop_reason"] for span, line in foretold.items()} == {
        span: row["drop_reason"] or None for span, row in trained.items()
    }
    assert {row["drop_reason"] for row in trained.values()} == {"", "unknown_version"}


def test_agents_that_nobody_is_are_told_and_nothing_is_consumed(world: World) -> None:
    world.agents.pair("one")
    config = changed(world.config, "data", agents=["nobody"])
    with pytest.raises(NothingToTrainError, match=r"none of 2 rollouts .* data.agents = \['nobody'\].*: correct"):
        world.train(config)
    assert world.samples() == []
    (step,) = world.train()
    assert step.metrics["n_trained"] == 4


def test_nothing_chosen_is_said(world: World) -> None:
    world.agents.pair("one")
    arguments = ["transitions", "--policy", world.agents.policy, "--task", "nobody's"]
    done = CliRunner().invoke(app, arguments, env={"TRACEGRAD_CLICKHOUSE": world.agents.collector.clickhouse})
    assert done.exit_code == 0
    assert "no transition is chosen" in done.stderr
    assert done.stdout.split()[0] == "ROLLOUT"


def test_a_call_that_came_after_its_rollout_was_consumed_is_left(world: World, tmp_path: Path) -> None:
    job = tmp_path / "train.toml"
    job.write_text(f'[data]\npolicy = "{world.agents.policy}"\n[engine]\nmodel = "{world.config.engine.model}"\n')
    first, _ = world.agents.pair("one")
    world.train()
    world.agents.late_call(first, 5)
    deadline = time.monotonic() + 30
    while len(found := listed(world, job)) < 5:
        assert time.monotonic() < deadline
    late = {span for span in found if span not in {row["span_id"] for row in world.samples()}}
    assert {(found[span]["used"], found[span]["drop_reason"]) for span in late} == {(False, "came_late")}
    shown = world.sql("SELECT span_id, used, drop_reason FROM transitions WHERE rollout_id = {id:String}", id=first)
    assert {row["span_id"]: (row["used"], row["drop_reason"]) for row in shown}[late.pop()] == (False, "came_late")
    with pytest.raises(NothingToTrainError, match="2 already trained"):
        world.train()
