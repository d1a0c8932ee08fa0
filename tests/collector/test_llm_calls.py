"""`llm_calls` shows whole prompts and messages, whatever the sidecar left out: against what the engine saw."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from recorded_calls import World, check, depth, rows, send

from collector.engine import Engine
from collector.migrations import FILES, Schema, apply
from sidecar.earlier import MOST_FORKS


@pytest.mark.parametrize("drift", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_every_row_is_whole_whatever_the_order_of_arrival(collector: Any, seed: int, drift: float) -> None:
    world = World(random.Random(seed), drift)
    world.grow(60)
    assert sum(told.extends != "" for told in world.told.values()) > len(world.told) / 4
    spans = world.random.sample(world.spans, len(world.spans))
    for start in range(0, len(spans), 25):
        send(collector, spans[start : start + 25])
    send(collector, spans[:10])  # and some again
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    assert found.keys() == world.told.keys()
    check(world, found)
    span_id = world.random.choice(list(world.told))
    one = rows(collector, f"span_id = '{span_id}'")
    assert one.keys() == {span_id}
    check(world, one)
    (trace_id,) = {row["trace_id"] for row in one.values()}
    check(world, rows(collector, f"trace_id = '{trace_id}' AND policy = 'policy' AND trainable IN (true, false)"))


def test_hundreds_of_turns(collector: Any) -> None:
    world = World(random.Random(9), drift=0.0, late=0.0)
    world.call()
    for _ in range(400):
        world.call(world.states[-1])
    assert max(map(depth, world.spans)) == 400
    send(collector, world.spans)
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    assert found.keys() == world.told.keys()
    check(world, found)


def test_forks_from_forks_end_in_a_whole_call(collector: Any) -> None:
    world = World(random.Random(10), drift=0.0, late=0.0)
    world.call()
    for _ in range(100):
        world.call(world.states[-1], n=2)  # the second choice is always the one that is gone on from
    assert sum(told.extends == "" for told in world.told.values()) == 1 + 100 // MOST_FORKS
    send(collector, world.spans)
    check(world, rows(collector, f"rollout_id = '{world.rollout_id}'"))


def test_rows_and_views_of_an_older_store_become_todays(tmp_path: Path) -> None:
    older = tmp_path / "schema"
    older.mkdir()
    for file in FILES.glob("000[1-3]_*.sql"):
        shutil.copy(file, older)
    with Engine(tmp_path / "store") as engine, engine.connection() as connection:
        apply(connection, Schema(files=older))
        for view in ("agent_spans", "recorded_calls", "line_calls", "llm_calls", "rewards", "rollouts"):
            connection.query(f"CREATE VIEW otel.{view} AS SELECT TraceId FROM otel.otel_traces")
        connection.query(
            "ALTER TABLE otel.otel_traces ADD COLUMN AgentName LowCardinality(String) MATERIALIZED 'as it was'"
        )
        connection.query(
            """INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, ParentSpanId, SpanName, SpanAttributes) VALUES
            (now64(9), 't', 's', 'p', 'chat', {'tracegrad.trainable': 'true', 'tracegrad.rollout.id': 'r',
                'tracegrad.prompt.token_ids': '[5,6]', 'gen_ai.input.messages': '[{}]'}),
            (now64(9), 't', 'p', '', 'agent_run [writer]', {})"""
        )
        connection.query("INSERT INTO otel.schema_migrations (number, name) VALUES (4, 'views'), (5, 'x'), (6, 'y')")
        apply(connection, Schema())
        shown = "SELECT agent, prompt_token_ids, input_messages, trainable, untrainable_reason FROM otel.llm_calls"
        deadline = time.monotonic() + 60
        while (found := connection.query(shown).body) != b"writer\t[5,6]\t[{}]\ttrue\t\n":  # in the background
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        assert connection.query("SELECT agents, n_calls FROM otel.rollouts").body == b"['writer']\t1\n"
        assert connection.query("EXISTS otel.agent_spans").body == b"0\n"


@pytest.mark.parametrize("seed", range(2))
def test_what_hangs_on_a_lost_span_is_not_trainable(collector: Any, seed: int) -> None:
    world = World(random.Random(seed + 100))
    world.grow(60)
    lost, kept = set[str](), set[str]()
    while all(world.whole(span_id, lost) for span_id in kept):  # until something hangs on what is lost
        lost = set(world.random.sample(sorted(world.told), 6))
        kept = world.told.keys() - lost
    send(collector, [span for span in world.spans if span.span_id.hex() not in lost])
    found = rows(collector, f"rollout_id = '{world.rollout_id}'")
    assert found.keys() == world.told.keys() - lost
    whole = {span_id for span_id in found if world.whole(span_id, lost)}
    assert whole < found.keys()
    check(world, {span_id: found[span_id] for span_id in whole})
    for span_id in found.keys() - whole:
        row, told = found[span_id], world.told[span_id]
        assert row["prompt_token_ids"] == []
        assert (row["trainable"], row["untrainable_reason"]) == (False, told.untrainable or "incomplete_token_ids")
        assert row["response_token_ids"] == told.response
