"""Trees of spans at random, whole and broken: agents and places as a walk from span to span finds them."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.engine import Connection, Engine
from collector.migrations import Schema, apply

START_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True)
class Recorded:
    """A span. `parent`: a span's id, one that is not there, or none. Times are in nanoseconds after the start."""

    id: str
    parent: str
    agent: str
    node: str
    start: int
    length: int
    is_call: bool

    @property
    def end(self) -> int:
        return self.start + self.length


Trace = dict[str, Recorded]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with Engine(tmp_path_factory.mktemp("late") / "store") as engine, engine.connection() as connection:
        apply(connection, Schema())
        yield connection


@st.composite
def traces(draw: st.DrawFn, *, broken: bool) -> Trace:
    """`broken`: parents may be missing; else spans may be in circles."""
    ids = [f"{index:016x}" for index in range(1, draw(st.integers(1, 14)) + 1)]
    spans = {}
    for index, id_ in enumerate(ids):
        known = ids[:index] if broken else ids
        others = [*known, "", *(["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"] if broken else [])]
        spans[id_] = Recorded(
            id_,
            draw(st.sampled_from(others)),
            draw(st.sampled_from(["", "", "", "writer", "critic", "boss"])),
            draw(st.sampled_from(["", "", "", "plan"])),
            draw(st.integers(0, 9)),
            draw(st.integers(0, 9)),
            draw(st.booleans()),
        )
    return spans


def walk(trace: Trace, span: Recorded) -> tuple[list[Recorded], bool]:
    """All spans from this one up, and whether they end at one; else they are in a circle."""
    way = [span]
    while (above := trace.get(way[-1].parent)) is not None:
        if above is way[-1]:
            return way, True  # its own parent
        if above in way:
            return way, False
        way.append(above)
    return way, True


def missing(trace: Trace, span: Recorded) -> str:
    way, ends = walk(trace, span)
    return way[-1].parent if ends and way[-1].parent not in trace else ""


def nearest(trace: Trace, span: Recorded) -> Recorded | None:
    return next((one for one in walk(trace, span)[0] if one.agent), None)


def agent_of(trace: Trace, call: Recorded) -> str:
    """As the view `trace_agents` says it is told."""
    if (found := nearest(trace, call)) is not None:
        return found.agent
    if node := next((one.node for one in walk(trace, call)[0] if one.node), ""):
        return node
    if not (lost := missing(trace, call)):
        return ""
    at_work = {
        (one.start, one.end, one.agent, missing(trace, one), _over(trace, one))
        for one in trace.values()
        if one.agent and one.start <= call.start <= one.end and missing(trace, one) != lost
    }
    next_above = [over for *_, over in at_work]
    if len(next_above) != len(set(next_above)):  # side by side
        return ""
    return max(at_work)[2] if at_work else ""


def _over(trace: Trace, agent: Recorded) -> str:
    parent = trace.get(agent.parent)
    if parent is None:
        return ""
    found = nearest(trace, parent)
    return found.id if found is not None else walk(trace, parent)[0][-1].id


def insert(store: Connection, trace: Trace) -> tuple[str, str]:
    """The trace's and the rollout's id."""
    trace_id, rollout_id = secrets.token_hex(16), secrets.token_hex(8)
    rows = []
    for span in trace.values():
        values = {"tracegrad.rollout.id": rollout_id} if span.is_call else {}
        values |= {"tracegrad.trainable": "true"} if span.is_call else {}
        values |= {"gen_ai.agent.name": span.agent} if span.agent else {}
        values |= {"langgraph_node": span.node} if span.node else {}
        rows.append(
            {
                "Timestamp": START_NS + span.start,
                "TraceId": trace_id,
                "SpanId": span.id,
                "ParentSpanId": span.parent,
                "SpanName": "span",
                "SpanAttributes": values,
                "Duration": span.length,
            }
        )
    lines = "\n".join(json.dumps(row) for row in rows)
    store.query(
        "INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, ParentSpanId, SpanName, SpanAttributes, Duration) "
        "SELECT fromUnixTimestamp64Nano(Timestamp), TraceId, SpanId, ParentSpanId, SpanName, SpanAttributes, Duration "
        "FROM format(JSONEachRow, 'Timestamp Int64, TraceId String, SpanId String, ParentSpanId String, "
        f"SpanName String, SpanAttributes Map(String, String), Duration UInt64', '{lines}')"
    )
    return trace_id, rollout_id


def asked(store: Connection, query: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.query(query, "JSONEachRow").body.splitlines()]


@pytest.mark.parametrize("broken", [True, False])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_agents_are_those_that_a_walk_finds(store: Connection, broken: bool, data: st.DataObject) -> None:
    trace = data.draw(traces(broken=broken))
    trace_id, _ = insert(store, trace)
    rows = asked(store, f"SELECT span_id, agent FROM otel.call_contexts WHERE trace_id = '{trace_id}'")
    assert {row["span_id"]: row["agent"] for row in rows} == {
        span.id: agent_of(trace, span) for span in trace.values() if span.is_call
    }


@pytest.mark.parametrize("broken", [True, False])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_tree_is_that_of_a_walk(store: Connection, broken: bool, data: st.DataObject) -> None:
    trace = data.draw(traces(broken=broken))
    trace_id, rollout_id = insert(store, trace)
    rows = asked(store, f"SELECT * FROM otel.span_tree WHERE rollout_id = '{rollout_id}'")
    places = {}
    for span in trace.values() if any(one.is_call for one in trace.values()) else ():
        way, ends = walk(trace, span)
        places[span.id] = (span.parent, way[-1].id if ends else "", len(way) - 1 if ends else 0)
    assert {row["span_id"]: (row["parent_span_id"], row["root_span_id"], row["depth"]) for row in rows} == places
    assert {row["trace_id"] for row in rows} <= {trace_id}


def test_calls_are_found_among_many_spans_that_are_none(store: Connection) -> None:
    """A column that is nearly always its default is stored sparsely: it must not get out of step with the others."""
    store.query(
        "INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, SpanName) "
        "SELECT fromUnixTimestamp64Nano(1790000000000000000), 'crowd', hex(number), 'span' FROM numbers(20000)"
    )
    plain = Recorded("", "", "", "", 0, 0, is_call=False)
    steps = [replace(plain, id="c" * 16, agent="planner")]
    for index in range(4):
        steps.append(replace(plain, id=f"a{index:015x}", parent=steps[-1].id))
    call = replace(plain, id="b" * 16, parent=steps[-1].id, is_call=True, start=1, length=1)
    trace_id, rollout_id = insert(store, {span.id: span for span in (*steps, call)})
    store.query("OPTIMIZE TABLE otel.otel_traces FINAL")
    for by in (f"trace_id = '{trace_id}'", f"rollout_id = '{rollout_id}'"):
        assert asked(store, f"SELECT span_id, agent FROM otel.llm_calls WHERE {by}") == [
            {"span_id": call.id, "agent": "planner"}
        ]
        depths = {row["span_id"]: row["depth"] for row in asked(store, f"SELECT * FROM otel.span_tree WHERE {by}")}
        assert depths == {span.id: depth for depth, span in enumerate((*steps, call))}
