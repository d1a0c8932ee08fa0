"""What senders send that cannot be: it is stored, harms nobody else, and nothing is trained on it."""

from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from recorded_rollout import START, Recorder, read

LATEST_NS = 2**63 - 1
LATEST = "2262-04-11 23:47:16.854775807"
"""The last time that DateTime64(9) can hold."""
VIEWS = ("llm_calls", "rollouts", "rollout_tree", "span_tree", "transitions", "credit_nodes")


@pytest.fixture
def recorder(collector: Any) -> Recorder:
    """A rollout of its own."""
    return Recorder(collector)


def at(span: Span, start_ns: int, end_ns: int) -> Span:
    """The span from then to then."""
    span.start_time_unix_nano, span.end_time_unix_nano = start_ns, end_ns
    return span


def test_no_time_is_beyond_the_last_one(collector: Any, recorder: Recorder) -> None:
    stored = {
        (START, 2**64 - 1): [START, LATEST_NS - START, LATEST_NS],
        (START, 2**63): [START, LATEST_NS - START, LATEST_NS],
        (2**64 - 2, 2**64 - 1): [LATEST_NS, 0, LATEST_NS],
        (2**63 - 1001, 2**64 - 1): [LATEST_NS - 1000, 1000, LATEST_NS],
        (2**64 - 1, START): [LATEST_NS, 0, LATEST_NS],
        (0, 2**63 - 1): [0, LATEST_NS, LATEST_NS],
        (START, 0): [START, 0, START],
    }
    calls = [at(recorder.call(), start_ns, end_ns) for start_ns, end_ns in stored]
    recorder.send(*calls, recorder.root_span(), recorder.reward(1.0, START))
    asked = "toUnixTimestamp64Nano(Timestamp) AS start, Duration, toUnixTimestamp64Nano(EndedAt) AS end"
    spans = f"FROM otel_traces WHERE RolloutId = '{recorder.rollout_id}' AND IsLlmCall"
    told = {
        row.pop("SpanId"): [int(value) for value in row.values()]
        for row in read(collector, f"SELECT SpanId, {asked} {spans}")
    }
    assert [told[call.span_id.hex()] for call in calls] == list(stored.values())
    rows = {view: recorder.rows(view) for view in VIEWS}
    assert all(rows.values())
    assert [row["ended_at"] for row in rows["llm_calls"]].count(LATEST) == 6


def test_rows_from_elsewhere_with_ends_that_cannot_be_harm_no_view(collector: Any, recorder: Recorder) -> None:
    recorder.send(recorder.call(), recorder.root_span(), recorder.reward(1.0, START))
    longest = 2**64 - 1  # what others make of a span that ends before it starts is near to it
    odd = [(START, longest), (START, 2**63), (LATEST_NS, 1), (LATEST_NS, longest), (-1, longest), (1 - 2**63, 2**63)]
    identity = f"'tracegrad.rollout.id', '{recorder.rollout_id}', 'tracegrad.policy.name', 'policy'"
    collector.sql(
        "INSERT INTO otel_traces (Timestamp, TraceId, SpanId, ParentSpanId, Duration, SpanAttributes) "
        f"SELECT fromUnixTimestamp64Nano(toInt64(odd.1)), '{recorder.root.trace_id.hex()}', "
        f"concat('odd', toString(number)), '{recorder.root.span_id.hex()}', odd.2, "
        f"map({identity}, 'tracegrad.trainable', 'true') "
        f"FROM (SELECT CAST({odd}, 'Array(Tuple(Int64, UInt64))') AS all) ARRAY JOIN all AS odd, range(6) AS number"
    )
    rows = {view: recorder.rows(view) for view in VIEWS}
    assert all(rows.values())
    ends = {row["span_id"]: row["ended_at"] for row in rows["rollout_tree"]}
    assert [ends[f"odd{number}"] for number in range(4)] == [LATEST] * 4
    (rollout,) = rows["rollouts"]
    assert (rollout["status"], rollout["last_seen_at"]) == ("succeeded", LATEST)


NO_IDS = [
    "[2.5, 8]",
    "[-7, 8]",
    "[9223372036854775808, 8]",
    "[1000000000]",
    "[1e3]",
    "[null, 8]",
    '["a", 8]',
    "[true, 8]",
]
NO_IDS += ["[[1], 8]", "[1, 2", "[1, 2] 3", "[007]", '"[1]"', '{"a": 1}', "7", "haha", ""]
NO_LOGPROBS = ["[null, null]", '["a", -1]', "[true, -1]", "[[1], -1]", "[-1, NaN]", "[-1", "haha"]


def test_what_is_no_list_of_numbers_is_an_empty_one(recorder: Recorder) -> None:
    prompts = [recorder.call(PROMPT_TOKEN_IDS=told) for told in NO_IDS]
    responses = [recorder.call(RESPONSE_TOKEN_IDS=told) for told in NO_IDS]
    uncertain = [recorder.call(RESPONSE_LOGPROBS=told) for told in NO_LOGPROBS]
    spaced = recorder.call(PROMPT_TOKEN_IDS=" [ 0,1 , 999999999\n]\t", RESPONSE_LOGPROBS=" [ -0.5 ,-1E+1]")
    recorder.send(*prompts, *responses, *uncertain, spaced, recorder.root_span(), recorder.reward(1.0, START))
    rows = {row["span_id"]: row for row in recorder.rows("transitions")}
    for calls, column, reason in (
        (prompts, "prompt_token_ids", "no_tokens"),
        (responses, "response_token_ids", "no_tokens"),
        (uncertain, "logprobs", "no_logprobs"),
    ):
        told = [rows[call.span_id.hex()] for call in calls]
        assert [(row[column], row["used"], row["drop_reason"]) for row in told] == [([], False, reason)] * len(calls)
    read_well = rows[spaced.span_id.hex()]
    assert (read_well["prompt_token_ids"], read_well["logprobs"]) == ([0, 1, 999999999], [-0.5, -10])


def test_rows_from_elsewhere_are_read_in_the_same_way(collector: Any, recorder: Recorder) -> None:
    ids, logprobs = "'tracegrad.prompt.token_ids', '[2.5, 8]', 'tracegrad.response.token_ids', '[-7, 8]'", "'[null]'"
    told = f"map('tracegrad.rollout.id', '{recorder.rollout_id}', {ids}, 'tracegrad.response.logprobs', {logprobs})"
    collector.sql(f"INSERT INTO otel_traces (Timestamp, SpanAttributes) SELECT now64(9), {told}")
    columns = "PromptTokenIds, ResponseTokenIds, ResponseLogprobs"
    asked = f"SELECT {columns} FROM otel_traces WHERE RolloutId = '{recorder.rollout_id}'"
    assert [list(row.values()) for row in read(collector, asked)] == [[[], [], []]]


def test_what_a_call_adds_to_another_is_ids_too(recorder: Recorder) -> None:
    first = recorder.call(PROMPT_TOKEN_IDS="[1,2]")
    id_ = first.span_id.hex()
    extends: dict[str, Any] = {"EXTENDS_SPAN_ID": id_, "EXTENDS_ROOT": id_, "EXTENDS_DEPTH": 1, "EXTENDS_TOKENS": 4}
    second = recorder.call(PROMPT_TOKEN_IDS="[9, 2.5]", PROMPT_LENGTH=6, **extends)
    recorder.send(first, second, recorder.root_span(), recorder.reward(1.0, START))
    (shown,) = [row for row in recorder.rows("llm_calls") if row["span_id"] == second.span_id.hex()]
    assert (shown["prompt_token_ids"], shown["trainable"]) == ([], False)


def test_a_score_beyond_all_measure_is_stored_and_is_no_reward(collector: Any, recorder: Recorder) -> None:
    beyond = {"a": 1.1e30, "b": 1e308, "c": -1e308, "d": float("inf"), "e": float("nan"), "exact": 1e308}
    recorder.send(recorder.call(), recorder.root_span())
    recorder.send(*(recorder.reward(score, START + 10, name=name) for name, score in beyond.items()))
    recorder.send(recorder.reward(0.25, START), recorder.reward(-1e30, START, name="worst"))
    assert {row["name"]: row["score"] for row in recorder.rows("rewards")} == {"exact": 0.25, "worst": -1e30}
    (rollout,) = recorder.rows("rollouts")
    assert rollout["reward"] == -1e30
    stored = f"SELECT toUInt32(count()) AS n FROM otel_logs WHERE RolloutId = '{recorder.rollout_id}'"
    assert read(collector, stored) == [{"n": 8}]
