"""What a job would have trained with other rewards or credit, and what differs from what it did train."""

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_agents import Collector, RecordedAgents
from training_doubles import CountingLearner
from training_world import changed
from typer.testing import CliRunner

from tracegrad.cli import app
from trainer import run
from trainer.config import TrainConfig


def invoke(collector: Collector, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["transitions", *arguments], env={"TRACEGRAD_CLICKHOUSE": collector.clickhouse})


def lines(collector: Collector, *arguments: str) -> list[dict[str, Any]]:
    done = invoke(collector, "--json", *arguments)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def train(agents: RecordedAgents, config: TrainConfig) -> str:
    with run.opened_job(config, agents.collector.clickhouse, start_learner=CountingLearner.start) as job:
        steps: list[Any] = []
        run.train_once(job, config, 1, steps.append)
    return str(steps[0].step_id)


def test_a_step_is_rebuilt_as_it_was(agents: RecordedAgents, config: TrainConfig) -> None:
    with agents.together():
        agents.pair("one")
        agents.run("one", 0.5, version=7)
        agents.run("two", 0.5)
        agents.run("two", 0.0, n_calls=0)
    step = train(agents, config)
    found = lines(agents.collector, "--diff", step)
    assert len(found) == 8
    assert all(line["same"] for line in found)
    assert {line["trained"]["drop_reason"] for line in found} == {None, "unknown_version"}
    assert [line["rebuilt"] for line in found] == [line["trained"] for line in found]
    said = invoke(agents.collector, "--diff", step).stdout
    assert said == "8 transitions would be trained as they were, 0 would not\n"


def test_other_credit_and_later_rewards_show_beside_what_was_trained(
    agents: RecordedAgents, config: TrainConfig
) -> None:
    with agents.together():
        good, bad = agents.pair("one")
    step = train(agents, changed(config, "credit", scheme="discounted", gamma=0.5))
    assert all(line["same"] for line in lines(agents.collector, "--diff", step))
    found = lines(agents.collector, "--diff", step, "--gamma", "1")
    assert [line["trained"]["credit"] for line in found if line["rollout_id"] == good] == [0.5, 1.0]
    assert [line["rebuilt"]["credit"] for line in found if line["rollout_id"] == good] == [1.0, 1.0]
    assert {line["same"] for line in found if line["rollout_id"] == bad} == {False}, "its advantage differs"

    alone = lines(agents.collector, "--diff", step, "--credit", "step")
    assert {line["rebuilt"]["drop_reason"] for line in alone} == {"no_signal"}
    table = invoke(agents.collector, "--diff", step, "--credit", "step").stdout.splitlines()
    assert table[0].split()[:3] == ["ROLLOUT", "AGENT", "SPAN"]
    assert table[-1] == "0 transitions would be trained as they were, 4 would not"
    assert sum("no: no_signal" in row for row in table) == 4


def test_a_reward_set_is_a_way_to_look_at_rewards(agents: RecordedAgents, config: TrainConfig, tmp_path: Path) -> None:
    with agents.together():
        good, _ = agents.pair("one")
    job = tmp_path / "train.toml"
    job.write_text(
        f'[data]\npolicy = "{agents.policy}"\nreward_set = "double"\n[engine]\nmodel = "{config.engine.model}"\n'
        "[reward_set.double]\nanswer = 2.0\n[reward_set.others]\n'rule.*' = 1.0\n"
    )
    chosen = ["--rollout", good, "--policy", agents.policy]
    assert {line["credit"] for line in lines(agents.collector, *chosen)} == {1.0}
    assert {line["credit"] for line in lines(agents.collector, *chosen, "--reward-set", "answer")} == {1.0}
    assert {line["credit"] for line in lines(agents.collector, *chosen, "--job", str(job))} == {2.0}
    others = lines(agents.collector, *chosen, "--job", str(job), "--reward-set", "others")
    assert {(line["credit"], line["drop_reason"]) for line in others} == {(0.0, "no_reward")}
    unknown = invoke(agents.collector, "--reward-set", "unheard of")
    assert unknown.exit_code != 0
    assert "answer" in str(unknown.exception or unknown.output)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--credit", "no_such_module:f"], "cannot be imported"),
        (["--advantage", "ppo"], "critic"),
        (["--diff", "no such step"], "no step 'no such step' in the store"),
    ],
)
def test_a_choice_that_is_none_is_one_clear_error(agents: RecordedAgents, arguments: list[str], said: str) -> None:
    agents.pair("one")
    done = invoke(agents.collector, *arguments)
    assert done.exit_code != 0
    assert said in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--credit", "hierarchic"], "choose one of identical, discounted, step, hierarchical"),
        (["--advantage", "gae"], "choose one of grpo, dr_grpo"),
        (["--since", "soon"], "bad since 'soon'"),
        (["--job", "no-such.toml"], "does not exist"),
        (["--diff", "last", "--task", "t", "--since", "1d"], "--task, --since would choose others"),
        (["--diff", "last", "--policy", "p", "--no-advantage"], "--policy, --no-advantage would choose others"),
    ],
)
def test_bad_usage_is_told_before_a_store_is_asked(arguments: list[str], said: str, free_port: Any) -> None:
    done = CliRunner().invoke(
        app, ["transitions", *arguments], env={"TRACEGRAD_CLICKHOUSE": f"http://127.0.0.1:{free_port()}"}
    )
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
