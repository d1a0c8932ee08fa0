"""A copy of an own trace, which an agent's instrumentation sent elsewhere too, changes nothing of the own one."""

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from recorded_agents import RecordedAgents
from recorded_tree import RecordedTree
from typer.testing import CliRunner

from tracegrad.cli import app
from tracegrad.errors import InputError


def invoke(agents: RecordedAgents, *arguments: object) -> Any:
    where = {"TRACEGRAD_CLICKHOUSE": agents.collector.clickhouse, "TRACEGRAD_OTLP": agents.collector.otlp}
    return CliRunner().invoke(app, [str(one) for one in arguments], env=where)


def known(agents: RecordedAgents, rollout: str) -> tuple[list[float], Any, Any]:
    """Credit of its transitions, its rewards, and the rollout itself."""
    listed = invoke(agents, "transitions", "--json", "--rollout", rollout).stdout.splitlines()
    return (
        [json.loads(line)["credit"] for line in listed],
        agents.sql("SELECT span_id, name, score FROM rewards WHERE rollout_id = {r:String} ORDER BY name", r=rollout),
        agents.sql("SELECT status, split, reward, n_calls FROM rollouts WHERE rollout_id = {r:String}", r=rollout),
    )


@pytest.fixture
def tree(agents: RecordedAgents) -> tuple[RecordedTree, bytes, bytes]:
    """A rollout with a rewarded tool, its agent's span and its tool's, sent."""
    tree = RecordedTree(agents)
    writer = tree.agent("writer")
    tree.call(writer, [1, 2], [3], asks=("q1",))
    tool = tree.tool("calc", writer, "q1")
    tree.reward(tree.root.span_id, "answer", 1.0)
    tree.reward(tool, "tool", -0.25)
    tree.send()
    return tree, writer, tool


def test_a_copy_of_it_is_a_rollout_of_its_own(
    agents: RecordedAgents, tree: tuple[RecordedTree, bytes, bytes], tmp_path: Path
) -> None:
    own, writer, tool = tree
    before = known(agents, own.rollout_id)
    assert before[0] == [0.75]
    trace, task = own.root.trace_id.hex(), secrets.token_hex(4)
    times = {"startTime": "2026-11-30T00:00:00Z", "endTime": "2026-11-30T00:00:01Z", "traceId": trace}
    agent = {"id": writer.hex(), "type": "AGENT", "name": "invoke_agent writer"} | times
    ran = {"id": tool.hex(), "type": "TOOL", "name": "calc", "parentObservationId": writer.hex()} | times
    score = {"name": "mood", "value": 3, "observationId": tool.hex(), "timestamp": "2026-11-30T00:00:02Z"}
    copy = tmp_path / "langfuse.json"
    copy.write_text(json.dumps({"trace": {"id": trace, "scores": [score]}, "observations": [agent, ran]}))
    done = invoke(agents, "import", copy, "--task", task)
    assert done.exit_code == 0, done.output
    (imported,) = agents.sql("SELECT rollout_id, trace_id, reward FROM rollouts WHERE task_id = {t:String}", t=task)
    assert imported["reward"] == 3
    assert trace not in (imported["rollout_id"], imported["trace_id"])
    assert known(agents, own.rollout_id) == before


def test_nothing_is_imported_into_a_rollout_that_was_recorded(
    agents: RecordedAgents, tree: tuple[RecordedTree, bytes, bytes], tmp_path: Path
) -> None:
    own, _, _ = tree
    before = known(agents, own.rollout_id)
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps({"gen_ai.operation.name": "chat", "input": "Hi", "output": "Ho"}))
    done = invoke(agents, "import", foreign, "--rollout", own.rollout_id)
    assert isinstance(done.exception, InputError)
    assert f"rollout {own.rollout_id} was recorded here, with 2 spans" in str(done.exception)
    assert known(agents, own.rollout_id) == before
    for _ in range(2):
        assert invoke(agents, "import", foreign, "--rollout", f"{own.rollout_id}-copy").exit_code == 0
