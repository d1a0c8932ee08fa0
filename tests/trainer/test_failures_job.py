"""A job meets every type of error, recorded as its senders would: what it does about each, and that it counts it."""

from typing import Any, get_args

import pytest
from recorded_agents import RecordedAgents
from recorded_tree import RecordedTree
from training_world import World, changed

from tracegrad.errors import NothingToTrainError
from trainer import run
from trainer.choices import ErrorType
from trainer.records import StepRecord

TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"
OF_LAUNCHER = {
    "exception": "exit_code",
    "timeout": "timeout",
    "cancelled": "interrupted",
    "upstream_error": "exit_code",
}


def failed_call(tree: RecordedTree, agent: bytes, status: int, message: str) -> None:
    told: dict[str, Any] = {
        "tracegrad.trainable": False,
        "tracegrad.untrainable.reason": "error",
        "error.type": str(status),
        "http.response.status_code": status,
    }
    tree.call(agent, [1, 2, 3, 4], [], error=message, **told)


def answer(part: dict[str, Any]) -> tuple[Any, Any]:
    """Messages of a call whose answer is one part."""
    return [], [{"role": "assistant", "parts": [part], "finish_reason": "stop"}]


def record(agents: RecordedAgents, error: str) -> str:
    """One rollout, graded 0, with one transition, in which this went wrong."""
    tree = RecordedTree(agents)
    agent = tree.agent("writer")
    if error == "malformed_tool_call":
        tree.call(agent, [1], [2], messages=answer({"type": "tool_call", "id": "a", "name": "calc", "arguments": "{x"}))
    elif error == "refusal":
        tree.call(agent, [1], [2], messages=answer({"type": "refusal", "content": "No."}))
    elif error == "truncation":
        tree.call(agent, [1], [2], **{"gen_ai.response.finish_reasons": ["length"]})
    else:
        tree.call(agent, [1], [2], asks=("id-1",))
    if error == "tool_error":
        tree.tool("calc", agent, call_id="id-1", error="ToolException")
    elif error == "context_overflow":
        failed_call(tree, agent, 400, TOO_LONG)
    elif error == "upstream_error":
        failed_call(tree, agent, 503, "the engine is gone")
    tree.reward(tree.root.span_id, "answer", 0.0)
    if error in OF_LAUNCHER:
        return tree.send("timeout" if error == "timeout" else "failed", OF_LAUNCHER[error])
    return tree.send()


def lost(agents: RecordedAgents) -> str:
    return agents.run("tree", None, n_calls=1, finished=False, status="lost", age_s=7200)


def verdicts(world: World, step: StepRecord) -> dict[str, tuple[float, str]]:
    rows = world.sql(
        "SELECT rollout_id, reward, drop_reason FROM train_samples FINAL WHERE step_id = {id:String}", id=step.step_id
    )
    return {row["rollout_id"]: (row["reward"], row["drop_reason"]) for row in rows}


def test_every_error_is_met_as_a_job_chooses_and_counted(world: World) -> None:
    good = world.agents.run("tree", 1.0, n_calls=1)
    recorded = {error: record(world.agents, error) for error in get_args(ErrorType) if error != "lost"}
    gone = lost(world.agents)
    again = changed(changed(world.config, "data", since="1d"), "gate", max_failed_share=0.0)
    for action in ("drop", "mask", "penalize", "keep"):
        chosen = changed(again, "data", on_failure=dict.fromkeys(get_args(ErrorType), action))
        (step,) = world.train(chosen)
        counted = {name: value for name, value in step.metrics.items() if name.startswith("failed_")}
        done_about_lost = "penalize" if action == "penalize" else "drop"
        assert counted == {f"failed_{error}_{action}": 1 for error in recorded} | {f"failed_lost_{done_about_lost}": 1}
        found = verdicts(world, step)
        assert found.pop(good) == (1.0, "")
        assert found.pop(gone, None) == ((-1.0, "") if action == "penalize" else None)
        credit = -1.0 if action == "penalize" else 0.0
        reasons = {error: f"failed_{error}" if action in ("drop", "mask") else "" for error in recorded}
        if action == "drop":
            reasons_of_all = {recorded[error]: reasons[error] for error in recorded}
            assert {rollout_id: reason for rollout_id, (_, reason) in found.items()} == reasons_of_all
        else:
            assert found == {recorded[error]: (credit, reasons[error]) for error in recorded}


def test_a_dry_run_counts_them_and_who_is_lost_stays(world: World) -> None:
    gone = lost(world.agents)
    with pytest.raises(NothingToTrainError, match=r"0 running, 1 lost, "):
        world.train()
    world.agents.pair("tree", n_calls=1)
    record(world.agents, "timeout")
    with run.opened_job(world.config, world.agents.collector.clickhouse, exclusive=False) as job:
        job.peek()
        plan = job.plan()
        counted = {name: value for name, value in job.plan_metrics(plan).items() if name.startswith("failed_")}
        assert counted == {"failed_lost_drop": 1, "failed_timeout_penalize": 1}
        assert job.gate_report(plan).failures == {"lost": {"drop": 1}, "timeout": {"penalize": 1}}
    (step,) = world.train()
    assert gone not in verdicts(world, step)
    world.agents.judge(gone, "answer", 0.5)
    (step,) = world.train()
    assert set(verdicts(world, step)) == {gone}, "it is judged late, but it is"
