"""`agent`: the nearest one above a call, whatever instrumentation named it."""

import json
import random
from typing import Any

import pytest
from framework_captures import CAPTURES, TOLD, load
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from recorded_rollout import Recorder

from tracegrad import names

OPERATION, AGENT, KIND = names.OPERATION_NAME, names.AGENT_NAME, "openinference.span.kind"
TRACELOOP = "traceloop.association.properties"

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "GenAI": ("invoke_agent planner", {OPERATION: "invoke_agent", AGENT: "planner"}, "planner"),
    "GenAI, no name": ("invoke_agent planner", {OPERATION: "invoke_agent"}, "planner"),
    "GenAI, nothing but an id": ("invoke_agent", {OPERATION: "invoke_agent", "gen_ai.agent.id": "a-1"}, "a-1"),
    "GenAI, nothing at all": ("invoke_agent", {OPERATION: "invoke_agent"}, "invoke_agent"),
    "GenAI, made and asked": ("create_agent coder", {OPERATION: "create_agent", AGENT: "coder"}, "coder"),
    "GenAI, a step that says whose it is": ("chat", {OPERATION: "chat", AGENT: "coder"}, "coder"),
    "GenAI, a workflow is no agent": ("invoke_workflow team", {OPERATION: "invoke_workflow"}, ""),
    "OpenInference": ("Coder.run", {KIND: "AGENT"}, "Coder.run"),
    "OpenInference, agent.name": ("Agent.run", {KIND: "AGENT", "agent.name": "Coder"}, "Coder"),
    "CrewAI": ("Writer._execute_core", {KIND: "AGENT", "graph.node.id": "Writer"}, "Writer"),
    "Agno": ("Coder.run", {KIND: "AGENT", "graph.node.id": "f3", "graph.node.name": "Coder"}, "Coder"),
    "OpenInference, a chain is no agent": ("LangGraph", {KIND: "CHAIN", "graph.node.id": "LangGraph"}, ""),
    "OpenInference, a tool is no agent": ("get_weather", {KIND: "TOOL", "tool.name": "get_weather"}, ""),
    "Traceloop": ("Triage.agent", {"traceloop.span.kind": "agent", "traceloop.entity.name": "Triage"}, "Triage"),
    "Traceloop, a task is no agent": ("a.task", {"traceloop.span.kind": "task", "traceloop.entity.name": "a"}, ""),
    "pydantic-ai": ("agent run", {"agent_name": "helper"}, "helper"),
    "pydantic-ai, a tool": ("running tool", {"agent_name": "helper", "gen_ai.tool.name": "add"}, ""),
    "Google ADK": ("agent_run [weather_agent]", {}, "weather_agent"),
    "Google ADK by OpenInference": ("agent_run [weather_agent]", {KIND: "AGENT"}, "weather_agent"),
    "Logfire": ("Agent run: {name!r}", {"name": "Triage"}, "Triage"),
    "MLflow": ("Coder", {"mlflow.spanType": '"AGENT"'}, "Coder"),
    "Langfuse": ("Coder", {"langfuse.observation.type": "agent"}, "Coder"),
    "LangGraph, a node": ("planner", {"langgraph_node": "planner"}, "planner"),
    "LangGraph, a node in a node": ("POST", {"langgraph_checkpoint_ns": "team:1f|writer:2e|tools:3d"}, "writer"),
    "LangGraph, what every agent has": ("POST", {"langgraph_node": "model"}, ""),
    "LangGraph, a named agent": ("POST", {"langgraph_node": "model", "lc_agent_name": "writer"}, "writer"),
    "LangGraph by OpenInference": ("plan", {KIND: "CHAIN", "metadata": '{"langgraph_node": "planner"}'}, "planner"),
    "LangGraph by Traceloop": ("plan.task", {f"{TRACELOOP}.langgraph_node": "planner"}, "planner"),
    "metadata of others": ("step", {"metadata": '{"user": "x"}'}, ""),
    "metadata that is no JSON": ("step", {"metadata": "{"}, ""),
}


@pytest.fixture
def recorder(collector: Any) -> Recorder:
    """A rollout of its own."""
    return Recorder(collector)


@pytest.fixture(scope="module")
def shown(collector: Any) -> dict[str, str]:
    """By case, the agent of a call one span below the one of the case."""
    request, calls = ExportTraceServiceRequest(), {}
    for case, (name, values, _) in CASES.items():
        recorder = Recorder(collector)
        above = recorder.plain(name, recorder.root.span_id, values)
        post = recorder.plain("POST", above.span_id)
        calls[case] = recorder.call(post.span_id)
        request.resource_spans.add().scope_spans.add().spans.extend([above, post, calls[case], recorder.root_span()])
    assert collector.send(request).status == 200
    ids = ", ".join(f"'{call.span_id.hex()}'" for call in calls.values())
    rows = collector.sql(f"SELECT span_id, agent FROM llm_calls WHERE span_id IN ({ids}) FORMAT JSONEachRow")
    agents = {row["span_id"]: row["agent"] for row in map(json.loads, rows.splitlines())}
    return {case: agents[call.span_id.hex()] for case, call in calls.items()}


@pytest.mark.parametrize("case", CASES)
def test_an_agent_is_known_by_what_its_instrumentation_says(shown: dict[str, str], case: str) -> None:
    assert shown[case] == CASES[case][2]


def test_the_agent_is_the_nearest_one_above_the_call(recorder: Recorder) -> None:
    root = recorder.root.span_id
    outer = recorder.agent("planner", root)
    step = recorder.plain("step", outer.span_id)
    inner = recorder.plain("Coder.run", step.span_id, {KIND: "AGENT"})
    post = recorder.plain("POST", inner.span_id)
    calls = {"planner": recorder.call(step.span_id), "Coder.run": recorder.call(post.span_id), "": recorder.call()}
    agents = (outer, step, inner, post)
    recorder.send(*agents, service="agent")
    recorder.send(*agents, service="agent")  # again: ancestors are not multiplied
    recorder.send(*calls.values(), recorder.root_span())
    assert recorder.agents() == {call.span_id.hex(): agent for agent, call in calls.items()}
    (rollout,) = recorder.rows("rollouts")
    assert rollout["agents"] == ["Coder.run", "planner"]


def test_a_call_that_names_its_agent_knows_best(recorder: Recorder) -> None:
    outer = recorder.agent("planner", recorder.root.span_id)
    call = recorder.call(outer.span_id, AGENT_NAME="critic")
    recorder.send(outer, call, recorder.root_span())
    assert recorder.agents() == {call.span_id.hex(): "critic"}


def test_an_agent_above_counts_more_than_a_node_below_it(recorder: Recorder) -> None:
    node = recorder.plain("research", recorder.root.span_id, {"langgraph_node": "research"})
    agent = recorder.agent("Researcher", node.span_id)
    post = recorder.plain("POST", agent.span_id, {"langgraph_node": "research"})
    calls = {"Researcher": recorder.call(post.span_id), "research": recorder.call(node.span_id)}
    recorder.send(node, agent, post, *calls.values(), recorder.root_span())
    assert recorder.agents() == {call.span_id.hex(): name for name, call in calls.items()}


def test_choices_of_one_request_are_their_agents(recorder: Recorder) -> None:
    agent = recorder.agent("writer", recorder.root.span_id)
    request = recorder.call(agent.span_id, TRAINABLE=None)
    choices = [recorder.call(request.span_id, CHOICE_INDEX=index) for index in range(2)]
    recorder.send(agent, request, *choices, recorder.root_span())
    assert recorder.agents() == {choice.span_id.hex(): "writer" for choice in choices}


@pytest.mark.parametrize("depth", [1, 2, 3, 63, 64, 65, 300, 5000])
def test_agents_are_found_from_any_depth(recorder: Recorder, depth: int) -> None:
    spans = [recorder.agent("deep", recorder.root.span_id)]
    for index in range(depth):
        spans.append(recorder.plain(f"step {index}", spans[-1].span_id))
    call = recorder.call(spans[-1].span_id)
    random.Random(depth).shuffle(spans)
    recorder.send(call, *spans, recorder.root_span())
    assert recorder.agents() == {call.span_id.hex(): "deep"}


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="../shared/fixtures/framework_captures is not there")
@pytest.mark.parametrize("name", TOLD)
def test_every_call_of_a_framework_has_the_agent_that_made_it(collector: Any, name: str) -> None:
    """As it was captured: agents in turn and side by side, handoffs, agents as tools, streams, both OpenAI APIs."""
    capture, request = load(name), ExportTraceServiceRequest()
    for scope, span in capture.spans:
        spans = request.resource_spans.add().scope_spans.add()
        spans.scope.name = scope
        spans.spans.append(span)
    assert collector.send(request).status == 200
    rows = collector.sql(
        f"SELECT span_id, agent FROM llm_calls WHERE rollout_id = '{capture.rollout_id}' FORMAT JSONEachRow"
    )
    agents = {row["span_id"]: row["agent"] for row in map(json.loads, rows.splitlines())}
    assert agents == capture.agents
    assert set(TOLD[name].values()) <= set(agents.values())
