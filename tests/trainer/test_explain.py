"""`tracegrad doctor --rollout`: one rollout as a person would ask about it."""

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_agents import RecordedAgents
from recorded_tree import RecordedTree
from training_world import World
from typer.testing import CliRunner

from tracegrad.cli import app

TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"


def doctor(agents: RecordedAgents, *arguments: str, status: int = 0) -> str:
    where = {"TRACEGRAD_OTLP": agents.collector.otlp, "TRACEGRAD_CLICKHOUSE": agents.collector.clickhouse}
    done = CliRunner().invoke(app, ["doctor", *arguments], env=where)
    assert done.exit_code == status, done.output
    return done.output if status != 1 else str(done.exception)


def explained(agents: RecordedAgents, rollout_id: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(doctor(agents, "--rollout", rollout_id, "--json", *arguments))
    return found


@pytest.fixture
def tree(agents: RecordedAgents) -> tuple[str, dict[str, bytes]]:
    """A writer that asks for two tools, one of which fails; and an agent beside it that makes no call."""
    one = RecordedTree(agents)
    ids = {"agent": one.agent("writer")}
    ids["c1"] = one.call(ids["agent"], [1, 2], [3, 4], asks=("id-1",))
    ids["calc"] = one.tool("calc", ids["agent"], call_id="id-1")
    ids["search"] = one.tool("search", ids["agent"], error="ToolException")
    ids["post"] = one.span("POST", ids["agent"])
    ids["c2"] = one.call(ids["agent"], [1, 2, 3, 4, 5], [6], **{"gen_ai.response.finish_reasons": ["length"]})
    ids["c3"] = one.call(ids["agent"], [9, 9], [7])
    ids["stray"] = one.agent("stray")
    one.reward(one.root.span_id, "answer", 1.0)
    one.reward(ids["calc"], "style", 0.1)
    one.reward(ids["stray"], "speed", 0.25)
    return one.send(), ids


def test_a_rollout_is_explained(agents: RecordedAgents, tree: tuple[str, dict[str, bytes]]) -> None:
    rollout_id, ids = tree
    found = explained(agents, rollout_id)
    assert (found["status"], found["error"], found["reward"]) == ("succeeded", None, 1.35)
    first, second, third = found["calls"]
    assert [call["number"] for call in found["calls"]] == [1, 2, 3]
    assert first["span_id"] == ids["c1"].hex()
    assert first["agent"] == "writer"
    assert first["tools"] == [
        {"span_id": ids["calc"].hex(), "how": "by id"},
        {"span_id": ids["search"].hex(), "how": "by order"},
    ]
    assert first["errors"] == ["tool_error"]
    assert second["errors"] == ["truncation"]
    shares = {share["span_id"]: share["amount"] for share in first["shares"]}
    assert len(shares) == 2
    assert shares[ids["calc"].hex()] == 0.1
    assert sum(shares.values()) == pytest.approx(first["credit"]) == pytest.approx(1.1)
    assert second["credit"] == 1.0
    assert second["follows"] == {"how": "continues", "call": 1, "why": ""}
    assert third["follows"]["call"] == 2
    assert third["follows"]["how"] == "unclassified"
    reaches = {reward["name"]: reward["reaches"] for reward in found["rewards"]}
    assert reaches == {"answer": [1, 2, 3], "style": [1], "speed": []}
    assert first["drop_reason"] == "singleton_group"


def test_it_is_drawn_for_a_person(agents: RecordedAgents, tree: tuple[str, dict[str, bytes]]) -> None:
    rollout_id, _ = tree
    text = doctor(agents, "--rollout", rollout_id)
    policy = agents.policy
    for line in (
        f"Rollout {rollout_id}, attempt 0: succeeded, task {policy}.tree",
        "Measured against nobody: no other rollout of its task is in its batch",
        "Spans (without 1 that are no agent's, tool's or call's)",
        "├─ agent writer",
        f"│  ├─ call 1: chat {policy}, version 0, 2 -> 2 tokens, tool_error",
        f"│  ├─ call 2: chat {policy}, version 0, 5 -> 1 tokens, length, truncation",
        "│  ├─ tool calc, asked for by call 1 (by id), style +0.1",
        "│  ├─ tool search, asked for by call 1 (by order), FAILED ToolException",
        "└─ agent stray, speed +0.25",
        "Rewards, their sum is 1.35",
        "  style +0.1 on tool calc: reaches call 1",
        "  speed +0.25 on invoke_agent stray: reaches no call",
        "Credit (hierarchical, gamma 1), advantage (grpo) and verdict",
        "    advantage +0.0000; a step would not train on it: singleton_group (its task has too few rollouts to be "
        "measured against)",
    ):
        assert line in text.splitlines(), text
    assert "  call 1: credit +1.1000 = " in text
    assert "    no merging with call 2, unclassified: the messages of the two calls are not recorded" in text


def test_a_job_decides_how_it_is_judged(
    agents: RecordedAgents, tree: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    rollout_id, ids = tree
    job = tmp_path / "train.toml"
    job.write_text(
        f'[data]\npolicy = "{agents.policy}"\nreward_set = "some"\npenalty = -0.5\n'
        'on_failure = {truncation = "penalize", tool_error = "mask"}\n'
        '[reward_set.some]\nanswer = 2.0\n[credit]\nscheme = "discounted"\ngamma = 0.5\n'
        f'[engine]\nmodel = "{tmp_path}"\ncheckpoints = "{tmp_path}/checkpoints"\n'
    )
    found = explained(agents, rollout_id, "--job", str(job))
    assert (found["scheme"], found["gamma"], found["reward"]) == ("discounted", 0.5, 2.0)
    assert found["penalties"] == {ids["c2"].hex(): -0.5}
    assert [call["credit"] for call in found["calls"]] == [0.25, 0.5, 2.0]
    assert [[share["amount"] for share in call["shares"]] for call in found["calls"]] == [
        [0.5, -0.25],
        [1.0, -0.5],
        [2.0],
    ]
    assert found["calls"][0]["drop_reason"] == "failed_tool_error"
    assert {reward["name"]: reward["weight"] for reward in found["rewards"]} == {
        "answer": 2.0,
        "style": None,
        "speed": None,
    }
    text = doctor(agents, "--rollout", rollout_id, "--job", str(job))
    assert "+0.5000 (of 2) rollout" in text
    assert "penalty -0.5 on call 2" in text
    assert "style +0.1 on tool calc: it does not count in this reward set" in text


def test_what_failed_and_what_a_job_does_about_it(agents: RecordedAgents, tmp_path: Path) -> None:
    one = RecordedTree(agents)
    agent = one.agent("writer")
    one.call(agent, [1], [2])
    refused: dict[str, Any] = {
        "tracegrad.trainable": False,
        "tracegrad.untrainable.reason": "error",
        "error.type": "400",
        "http.response.status_code": 400,
    }
    one.call(agent, [1, 2, 3], [], error=TOO_LONG, **refused)
    one.reward(one.root.span_id, "answer", 0.0)
    rollout_id = one.send("failed", "exit_code")
    job = tmp_path / "train.toml"
    job.write_text(f'[data]\npolicy = "{agents.policy}"\n[engine]\nmodel = "{tmp_path}"\ncheckpoints = "{tmp_path}"\n')
    found = explained(agents, rollout_id, "--job", str(job))
    assert (found["error"], found["action"]) == ("exception", "penalize")
    assert found["calls"][0]["errors"] == ["context_overflow"]
    assert found["calls"][0]["credit"] == -1.0
    assert found["calls"][1]["why_no_transition"] == "it failed: 400"
    text = doctor(agents, "--rollout", rollout_id, "--job", str(job))
    assert "Failed (exception, exit_code): what a job does about it is to penalize it" in text
    assert "call 2: no transition: it failed: 400" in text
    assert "maximum context length" in text


def test_a_job_has_verdicts_on_its_own_calls_only(agents: RecordedAgents, tmp_path: Path) -> None:
    one = RecordedTree(agents)
    writer, critic = one.agent("writer"), one.agent("critic")
    one.call(writer, [1], [2])
    one.call(critic, [3], [4])
    one.call(writer, [5], [6], **{"tracegrad.policy.name": "another"})
    one.reward(one.root.span_id, "answer", 1.0)
    rollout_id = one.send()
    job = tmp_path / "train.toml"

    def of_job(policy: str) -> str:
        job.write_text(
            f'[data]\npolicy = "{policy}"\nagents = ["writer"]\n'
            f'[engine]\nmodel = "{tmp_path}"\ncheckpoints = "{tmp_path}"\n'
        )
        return doctor(agents, "--rollout", rollout_id, "--job", str(job))

    text = of_job(agents.policy)
    assert "  call 1: credit +1.0000 = +1.0000 rollout" in text
    assert "  call 2: no transition: data.agents leaves out critic" in text
    assert f"  call 3: no transition: it is of policy another, the job trains {agents.policy}" in text
    text = of_job("unheard-of")
    assert f"  call 1: no transition: it is of policy {agents.policy}, the job trains unheard-of" in text


def test_names_cannot_move_the_cursor(agents: RecordedAgents) -> None:
    one = RecordedTree(agents)
    agent = one.agent("wri\x1b[2Jter")
    one.tool("ca\rlc", agent, error="Tool\x07Exception")
    text = doctor(agents, "--rollout", one.send())
    assert "agent wri\\x1b[2Jter" in text
    assert "tool ca\\rlc, asked for by no call, FAILED Tool\\x07Exception" in text


def test_spans_whose_parents_go_in_a_circle_are_drawn(agents: RecordedAgents) -> None:
    one = RecordedTree(agents)
    first = one.agent("first")
    second = one.agent("second", first)
    one.tool("within", second)
    one.move(first, second)
    assert [line.lstrip("│├└─ ") for line in doctor(agents, "--rollout", one.send()).splitlines()[4:9]] == [
        "rollout",
        "agent first",
        "agent second",
        "tool within, asked for by no call",
        "",
    ]


def test_what_a_step_did_is_told(world: World) -> None:
    agents = world.agents
    good, bad = agents.pair("one")
    (step,) = world.train()
    found = explained(agents, good)
    assert {call["step_id"] for call in found["calls"]} == {step.step_id}
    assert all(call["used"] and call["advantage"] > 0 for call in found["calls"])
    assert found["group"]["rollouts"] == 2
    assert found["group"]["reward_mean"] == 0.5
    with agents.together():  # a later step's, a held-out one, one without a reward: none of that step's
        agents.pair("one")
        agents.run("one", 1.0, split="eval")
        agents.run("one", None)
    text = doctor(agents, "--rollout", bad)
    assert f"step {step.step_id} trained on it" in text
    assert f"Measured among 2 rollouts of task {agents.policy}.one: rewards 0.5 on average, deviation 0.7071" in text


def test_what_is_not_there_is_said(agents: RecordedAgents) -> None:
    rollout_id = agents.run("one", None, n_calls=0)
    assert "No rewards: give some with `tracegrad reward`" in doctor(agents, "--rollout", rollout_id)
    said = doctor(agents, "--rollout", rollout_id, "--attempt", "3", status=1)
    assert f"rollout {rollout_id!r} has no attempt 3: give --attempt one of 0" in said
    assert "no rollout 'nothing' in the store" in doctor(agents, "--rollout", "nothing", status=1)
    assert "belong to --rollout" in doctor(agents, "--attempt", "1", status=2)
