"""What a view reads of a large store: by a filter on ids no more than there is to show, however much else there is."""

from collections.abc import Iterator

import pytest

from collector.engine import Connection, Engine
from collector.migrations import Schema, apply

SPANS_A_ROLLOUT = 20
ROLLOUTS = 8_000
"""Times four: 640,000 spans. Ids and times are computed from the number of the rollout and of the span in it."""
# A root span, two agents, two tools, five calls, and above each call a span of the agent's client and one of its HTTP.
FILL = """
INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, ParentSpanId, SpanName, ServiceName, SpanAttributes, Duration)
WITH
    intDiv(number, 20) AS rollout, toUInt8(number % 20) AS place, intDiv(place - 3, 3) AS turn, (place - 3) % 3 AS kind,
    (at -> lower(hex(sipHash64(rollout, toUInt64(at))))) AS id,
    multiIf(
        place = 0, 'rollout', place < 3, 'invoke_agent', place > 17, 'tool', kind = 0, 'chat', kind = 1, 'POST', 'call'
    ) AS name
SELECT
    fromUnixTimestamp64Milli(1790000000000 + toInt64(rollout * 2000 + place * 50)),
    lower(hex(sipHash128(rollout, 't'))), id(place),
    multiIf(place = 0, '', place < 3, id(0), place > 17, id(1), kind = 0, id(1 + turn % 2), id(place - 1)),
    name, multiIf(name = 'rollout', 'tracegrad.rollout', name = 'call', 'tracegrad.sidecar', 'agent'),
    multiIf(
        name = 'invoke_agent', map('gen_ai.agent.name', if(place = 1, 'planner', 'writer')),
        name IN ('rollout', 'call'), mapConcat(
            map('tracegrad.rollout.id', lower(hex(sipHash64(rollout, 'r'))), 'tracegrad.rollout.attempt', '0'),
            if(name = 'rollout', map('tracegrad.rollout.status', 'succeeded'), map(
                'tracegrad.trainable', 'true', 'tracegrad.policy.name', 'policy',
                'tracegrad.prompt.token_ids', '[1,2,3]',
                'tracegrad.response.token_ids', '[4,5]', 'tracegrad.response.logprobs', '[-0.5,-0.5]',
                'gen_ai.input.messages', '[{"role":"user"}]'))),
        map('x', 'y')),
    40000000
FROM numbers({first} * 20, {n} * 20);
"""
REWARD = """
INSERT INTO otel.otel_logs (Timestamp, TraceId, SpanId, ServiceName, EventName, LogAttributes)
SELECT
    fromUnixTimestamp64Milli(1790000000000 + toInt64(number * 2000)), lower(hex(sipHash128(number, 't'))),
    lower(hex(sipHash64(number, toUInt64(0)))), 'grader', 'gen_ai.evaluation.result',
    map('gen_ai.evaluation.name', 'exact', 'gen_ai.evaluation.score.value', toString(number % 4),
        'tracegrad.rollout.id', lower(hex(sipHash64(number, 'r'))), 'tracegrad.rollout.attempt', '0')
FROM numbers({first}, {n});
"""
ROLLOUT = "rollout_id = lower(hex(sipHash64(toUInt64(4321), 'r')))"
TRACE = "trace_id = lower(hex(sipHash128(toUInt64(4321), 't')))"
SPAN = "span_id = lower(hex(sipHash64(toUInt64(4321), toUInt64(5))))"
ASKED = {
    f"SELECT * FROM otel.llm_calls WHERE {ROLLOUT}": 5,
    f"SELECT * FROM otel.llm_calls WHERE {TRACE}": 5,
    f"SELECT * FROM otel.llm_calls WHERE {SPAN}": 1,
    f"SELECT * FROM otel.rollouts WHERE {ROLLOUT}": 1,
    f"SELECT * FROM otel.rewards WHERE {ROLLOUT}": 1,
    f"SELECT * FROM otel.span_tree WHERE {ROLLOUT}": 20,
    f"SELECT * FROM otel.span_tree WHERE {TRACE}": 20,
}


OF_MANY_PARTS = {f"SELECT * FROM otel.credits(gamma = 0.9) WHERE {ROLLOUT}": 5}
"""What reads from tables so often that a mark of each, 8,192 rows, is a lot already."""


def fill(connection: Connection, first: int, n: int) -> None:
    for statement in (FILL, REWARD):
        connection.query(statement.replace("{first}", str(first)).replace("{n}", str(n)))


def rows_read(connection: Connection, query: str) -> int:
    counted = "SELECT sum(value) FROM system.events WHERE event = 'SelectedRows'"
    before = int(connection.query(counted).body)
    connection.query(query, "Null")
    return int(connection.query(counted).body) - before - 1000  # of the events themselves there are a few hundred


@pytest.fixture(scope="module")
def small_and_large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, dict[str, int]]]:
    """A large store, and what the queries read when it had a quarter of it."""
    with Engine(tmp_path_factory.mktemp("scale") / "store") as engine, engine.connection() as connection:
        apply(connection, Schema())
        fill(connection, 0, ROLLOUTS)
        small = {query: rows_read(connection, query) for query in ASKED | OF_MANY_PARTS}
        for part in range(1, 4):
            fill(connection, part * ROLLOUTS, ROLLOUTS)
        connection.query("OPTIMIZE TABLE otel.otel_traces")
        yield connection, small


@pytest.mark.parametrize("query", ASKED | OF_MANY_PARTS)
def test_a_filter_on_ids_reads_no_more_of_a_larger_store(
    small_and_large: tuple[Connection, dict[str, int]], query: str
) -> None:
    connection, small = small_and_large
    assert len(connection.query(query, "JSONEachRow").body.splitlines()) == (ASKED | OF_MANY_PARTS)[query]
    table = 4 * ROLLOUTS * SPANS_A_ROLLOUT
    assert rows_read(connection, query) < min(1.5 * small[query], table / 3 if query in ASKED else table)


def test_newest_rewards_of_many_rollouts_read_no_attributes(
    small_and_large: tuple[Connection, dict[str, int]],
) -> None:
    connection, _ = small_and_large
    many = "(SELECT lower(hex(sipHash64(number, 'r'))) FROM numbers(10000))"
    query = f"SELECT rollout_id, score FROM otel.rewards WHERE rollout_id IN {many}"
    assert len(connection.query(query).body.splitlines()) == 10_000
    assert "Attributes" not in connection.query(f"EXPLAIN {query}").body.decode()


def test_tokens_and_agents_are_read_without_attributes(small_and_large: tuple[Connection, dict[str, int]]) -> None:
    connection, _ = small_and_large
    narrow = (
        "SELECT span_id, agent, policy, prompt_token_ids, response_token_ids, logprobs, trainable FROM otel.llm_calls"
    )
    assert "SpanAttributes" not in connection.query(f"EXPLAIN {narrow}").body.decode()
    wide = "SELECT input_messages FROM otel.llm_calls"
    assert "SpanAttributes" in connection.query(f"EXPLAIN {wide}").body.decode()
    rollouts = "SELECT * EXCEPT (stdout, stderr) FROM otel.rollouts"
    plan = connection.query(f"EXPLAIN {rollouts}").body.decode()
    assert not {"SpanAttributes", "TokenIds", "RolloutStdout"} & set(plan.replace(",", " ").split())
