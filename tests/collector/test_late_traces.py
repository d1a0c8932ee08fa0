"""Spans that come late, never, twice or in circles: what the views say meanwhile, and once more has arrived."""

import secrets
import time
from typing import Any

import pytest
from recorded_rollout import FAR_AHEAD, Recorder, read

from tracegrad import names
from tracegrad.otlp import SpanContext

HOUR_NS = 3600 * 10**9


@pytest.fixture
def recorder(collector: Any) -> Recorder:
    """A rollout of its own."""
    return Recorder(collector)


def ago(seconds: float) -> int:
    return time.time_ns() - round(seconds * 1e9)


def status(recorder: Recorder) -> str:
    (row,) = recorder.rows("rollouts")
    return str(row["status"])


def test_children_come_before_their_parents_and_an_hour_before_their_agent(recorder: Recorder) -> None:
    agent = recorder.agent("planner", recorder.root.span_id, at=range(HOUR_NS))
    chat = recorder.plain("chat", agent.span_id)
    post = recorder.plain("POST", chat.span_id)
    call = recorder.call(post.span_id)
    seen = []
    for late in (call, post, chat, agent):
        recorder.send(late)
        seen.append(recorder.agents())
    assert seen == [{call.span_id.hex(): name} for name in ("", "", "", "planner")]
    recorder.send(recorder.root_span())
    (rollout,) = recorder.rows("rollouts")
    assert (rollout["status"], rollout["agents"]) == ("succeeded", ["planner"])


def test_where_a_parent_is_missing_the_innermost_agent_at_work_made_the_call(recorder: Recorder) -> None:
    root = recorder.root.span_id
    boss = recorder.agent("boss", root, at=range(100_000))
    step = recorder.plain("step", boss.span_id, at=range(100_000))
    worker = recorder.agent("worker", step.span_id, at=range(500, 50_000))
    lost = secrets.token_bytes(8)
    post = recorder.plain("POST", lost)
    call = recorder.call(post.span_id)  # begins at 1,000
    other = recorder.agent("later", root, at=range(60_000, 90_000))
    recorder.send(boss, step, worker, other, post, call, recorder.root_span())
    assert recorder.agents() == {call.span_id.hex(): "worker"}


def test_agents_side_by_side_are_not_guessed_between(recorder: Recorder) -> None:
    root = recorder.root.span_id
    boss = recorder.agent("boss", root, at=range(100_000))
    pair = [recorder.agent(name, boss.span_id, at=range(at, 50_000)) for name, at in (("one", 100), ("two", 200))]
    call = recorder.call(secrets.token_bytes(8))
    recorder.send(boss, *pair, call, recorder.root_span())
    assert recorder.agents() == {call.span_id.hex(): ""}


def test_beside_an_agent_is_not_under_it_though_the_root_has_not_come(recorder: Recorder) -> None:
    agent = recorder.agent("planner", recorder.root.span_id, at=range(100_000))
    beside = recorder.call()  # both are children of the root, while the agent was at work
    recorder.send(agent, beside)
    assert recorder.agents() == {beside.span_id.hex(): ""}
    recorder.send(recorder.root_span())
    assert recorder.agents() == {beside.span_id.hex(): ""}


def test_a_trace_with_several_roots_has_an_agent_in_each(recorder: Recorder) -> None:
    calls = {}
    for name in ("one", "two"):
        top = recorder.plain(f"workflow {name}", b"")
        agent = recorder.agent(name, top.span_id)
        calls[name] = recorder.call(agent.span_id)
        recorder.send(top, agent, calls[name])
    recorder.send(recorder.root_span())
    assert recorder.agents() == {call.span_id.hex(): name for name, call in calls.items()}
    roots = {row["name"]: row["depth"] for row in recorder.rows("span_tree") if row["span_id"] == row["root_span_id"]}
    assert roots == {"workflow one": 0, "workflow two": 0, names.ROOT_SPAN_NAME: 0}


def test_parents_in_a_circle_do_no_harm(recorder: Recorder) -> None:
    one, two, three, four = (recorder.plain(name, b"\x01" * 8) for name in ("one", "two", "three", "four"))
    agent = recorder.agent("round", b"\x01" * 8)
    one.parent_span_id, agent.parent_span_id = agent.span_id, one.span_id
    two.parent_span_id, three.parent_span_id = three.span_id, two.span_id
    four.parent_span_id = four.span_id
    calls = [recorder.call(parent.span_id) for parent in (one, two, four)]
    recorder.send(one, two, three, four, agent, *calls)
    agents = recorder.agents()
    assert [agents[call.span_id.hex()] for call in calls] == ["round", "", ""]
    tree = {row["span_id"]: (row["root_span_id"], row["depth"]) for row in recorder.rows("span_tree")}
    assert tree[two.span_id.hex()] == ("", 0)
    assert tree[four.span_id.hex()] == (four.span_id.hex(), 0)


def test_two_attempts_in_one_trace_stay_apart(recorder: Recorder) -> None:
    script = recorder.plain("script", b"")
    parts = []
    for attempt in (0, 1):
        root = recorder.root_span("failed" if attempt == 0 else "succeeded", attempt)
        root.span_id, root.parent_span_id = secrets.token_bytes(8), script.span_id
        agent = recorder.agent(f"agent {attempt}", root.span_id)
        calls = [recorder.call(agent.span_id, attempt) for _ in range(attempt + 1)]
        on_root = SpanContext(root.trace_id, root.span_id)
        reward = recorder.reward(float(attempt), recorder.start, context=on_root, **{names.ROLLOUT_ATTEMPT: attempt})
        parts += [*calls, agent, root, reward]
    recorder.send(script, *reversed(parts))
    told = [
        (row["attempt"], row["status"], row["n_calls"], row["reward"], row["agents"])
        for row in recorder.rows("rollouts")
    ]
    assert told == [(0, "failed", 1, 0.0, ["agent 0"]), (1, "succeeded", 2, 1.0, ["agent 1"])]


def test_of_several_root_spans_the_one_that_ended_last_counts_as_a_whole(recorder: Recorder) -> None:
    early, late = recorder.root_span("timeout", ERROR_TYPE="timeout", EXIT_CODE=None), recorder.root_span(EXIT_CODE=0)
    late.span_id = secrets.token_bytes(8)
    late.end_time_unix_nano += 1
    for order in ((early, late), (late, early)):
        recorder.send(*order)
        (row,) = recorder.rows("rollouts")
        told = (row["status"], row["error_type"], row["exit_code"], row["root_span_id"])
        assert told == ("succeeded", "", 0, late.span_id.hex())


def test_what_is_silent_for_an_hour_is_lost_until_more_arrives(collector: Any) -> None:
    recorder = Recorder(collector, start=ago(3660))
    recorder.send(recorder.call())
    assert status(recorder) == "lost"
    recorder.start = ago(60)
    recorder.send(recorder.call())
    assert status(recorder) == "running"
    recorder.send(recorder.root_span("failed", ERROR_TYPE="exit_code"))
    assert status(recorder) == "failed"


def test_what_was_silent_for_less_is_running(collector: Any) -> None:
    recorder = Recorder(collector, start=ago(3540))
    recorder.send(recorder.call())
    assert status(recorder) == "running"


def test_a_root_span_settles_it_however_late(collector: Any) -> None:
    recorder = Recorder(collector, start=ago(7200))
    recorder.send(recorder.call(), recorder.root_span())
    assert status(recorder) == "succeeded"


def test_the_launcher_may_say_that_it_is_lost(collector: Any) -> None:
    recorder = Recorder(collector, start=ago(1))
    recorder.send(recorder.call(), recorder.root_span("lost", EXIT_CODE=None))
    assert status(recorder) == "lost"


def test_one_without_a_root_span_that_has_a_reward_is_not_lost(collector: Any) -> None:
    """Whoever runs an agent by hand and rewards it: the trainer takes it after a silence of its own choice."""
    recorder = Recorder(collector, start=ago(7200))
    recorder.send(recorder.call(), recorder.reward(1.0, recorder.start))
    assert status(recorder) == "running"


def test_what_is_ahead_of_the_clock_is_not_lost(collector: Any) -> None:
    recorder = Recorder(collector, start=FAR_AHEAD)
    recorder.send(recorder.call())
    assert status(recorder) == "running"


def test_how_long_a_silence_is_may_be_chosen(collector: Any) -> None:
    recorder = Recorder(collector, start=ago(3660))
    recorder.send(recorder.call())
    try:
        for chosen, expected in ((7200, "running"), (60, "lost"), (7200, "running")):
            collector.sql(f"INSERT INTO view_settings (name, value) VALUES ('lost_after_s', {chosen})")
            assert status(recorder) == expected
    finally:
        collector.sql("INSERT INTO view_settings (name, value) VALUES ('lost_after_s', 3600)")
    assert status(recorder) == "lost"


def test_a_tree_can_be_walked_and_measured_in_sql(recorder: Recorder) -> None:
    agent = recorder.agent("planner", recorder.root.span_id)
    chat = recorder.plain("chat", agent.span_id)
    calls = [recorder.call(parent.span_id) for parent in (agent, chat, chat)]
    recorder.send(*calls, chat, agent, recorder.root_span())
    of_rollout = f"TraceId IN (SELECT trace_id FROM rollouts WHERE rollout_id = '{recorder.rollout_id}')"
    walked = read(
        recorder.collector,
        f"""WITH RECURSIVE tree AS
        (
            SELECT SpanId, SpanName, [SpanName] AS path, 0 AS depth FROM otel_traces
            WHERE {of_rollout} AND ParentSpanId = ''
            UNION ALL
            SELECT spans.SpanId, spans.SpanName, arrayPushBack(tree.path, spans.SpanName), tree.depth + 1
            FROM otel_traces AS spans INNER JOIN tree ON spans.ParentSpanId = tree.SpanId
            WHERE {of_rollout}
        )
        SELECT SpanId AS span_id, arrayStringConcat(path, ' > ') AS path, toUInt32(depth) AS depth FROM tree""",
    )
    assert {row["span_id"]: row["depth"] for row in walked} == {
        row["span_id"]: row["depth"] for row in recorder.rows("span_tree")
    }
    assert {row["path"] for row in walked} >= {"rollout > invoke_agent planner > chat > chat served"}
    measured = read(
        recorder.collector,
        "SELECT span_id, row_number() OVER (PARTITION BY rollout_id ORDER BY started_at, span_id) AS turn, "
        "sum(length(response_token_ids)) OVER (PARTITION BY rollout_id ORDER BY started_at, span_id) AS tokens "
        f"FROM llm_calls WHERE rollout_id = '{recorder.rollout_id}' ORDER BY turn",
    )
    assert [(row["turn"], row["tokens"]) for row in measured] == [(1, 2), (2, 4), (3, 6)]
