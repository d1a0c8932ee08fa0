"""What `tracegrad transitions --job` and `train --dry-run` say is what the job does."""

import json
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
