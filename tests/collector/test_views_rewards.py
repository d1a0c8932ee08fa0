"""`rewards`: whose they are, and which counts."""

import secrets
from typing import Any

import pytest
from recorded_rollout import ANONYMOUS, START, Recorder

from tracegrad import names
from tracegrad.otlp import SpanContext


@pytest.fixture
def recorder(collector: Any) -> Recorder:
    """A rollout of its own."""
    return Recorder(collector)


def test_the_newest_reward_of_a_name_wins(recorder: Recorder) -> None:
    call = recorder.call()
    on_call = SpanContext(call.trace_id, call.span_id)
    recorder.send(call, recorder.root_span())
    recorder.send(recorder.reward(1.0, START + 20), service="regrader")
    recorder.send(
        recorder.reward(0.0, START + 10),
        recorder.reward(0.25, START, name="style"),
        recorder.reward(0.5, START, context=on_call),
        recorder.reward(None, START + 30),  # a label without a score is no reward
        recorder.reward(float("nan"), START + 40),
        service="grader",
    )
    rows = recorder.rows("rewards")
    assert {(row["span_id"], row["name"]): row["score"] for row in rows} == {
        (recorder.root.span_id.hex(), "exact"): 1.0,
        (recorder.root.span_id.hex(), "style"): 0.25,
        (call.span_id.hex(), "exact"): 0.5,
    }
    (newest,) = [row for row in rows if row["score"] == 1.0]
    assert newest == {
        "rollout_id": recorder.rollout_id,
        "trace_id": recorder.root.trace_id.hex(),
        "span_id": recorder.root.span_id.hex(),
        "name": "exact",
        "score": 1.0,
        "label": "ok",
        "source": "regrader",
        "at": "2026-09-21 14:13:20.000000020",
        "version": START + 20,
        "attempt": 0,
        "explanation": "because",
    }
    (rollout,) = recorder.rows("rollouts")
    assert rollout["reward"] == 1.75


def test_a_reward_that_names_no_rollout_belongs_to_that_of_its_trace(recorder: Recorder) -> None:
    recorder.send(recorder.call(attempt=2), recorder.root_span(attempt=2), recorder.reward(0.5, START, **ANONYMOUS))
    (row,) = recorder.rows("rewards")
    assert (row["attempt"], row["score"]) == (2, 0.5)
    (rollout,) = recorder.rows("rollouts")
    assert rollout["reward"] == 0.5


@pytest.mark.parametrize("no_span", [SpanContext(b"", b""), SpanContext(bytes(16), bytes(8))])
def test_to_reward_a_rollout_is_to_reward_its_root_span(recorder: Recorder, no_span: SpanContext) -> None:
    call = recorder.call()
    on_call = SpanContext(call.trace_id, call.span_id)
    recorder.send(call, recorder.reward(0.75, START + 30, context=no_span), recorder.reward(0.5, START, name="style"))
    (running,) = recorder.rows("rollouts")
    assert running["reward"] == 1.25
    recorder.send(
        recorder.root_span(),
        recorder.reward(1.0, START + 20),
        recorder.reward(0.25, START + 10, context=on_call),
    )
    assert {(row["span_id"], row["name"]): (row["score"], row["trace_id"]) for row in recorder.rows("rewards")} == {
        (recorder.root.span_id.hex(), "exact"): (0.75, recorder.root.trace_id.hex()),
        (recorder.root.span_id.hex(), "style"): (0.5, recorder.root.trace_id.hex()),
        (call.span_id.hex(), "exact"): (0.25, recorder.root.trace_id.hex()),
    }


@pytest.mark.parametrize("no_span", [SpanContext(b"", b""), SpanContext(bytes(16), bytes(8))])
def test_a_span_without_an_id_takes_no_rewards_of_others(
    recorder: Recorder, collector: Any, no_span: SpanContext
) -> None:
    nameless = Recorder(collector).call()
    nameless.trace_id, nameless.span_id = no_span.trace_id, no_span.span_id
    recorder.send(nameless)
    recorder.send(recorder.root_span(), recorder.reward(0.5, START, context=no_span))
    (row,) = recorder.rows("rollouts")
    assert row["reward"] == 0.5


def test_a_later_zero_for_the_rollout_replaces_the_one_on_its_root_span(recorder: Recorder) -> None:
    recorder.send(recorder.root_span(), recorder.reward(1.0, START))
    recorder.send(recorder.reward(0.0, START + 1, context=SpanContext(b"", b"")))
    (row,) = recorder.rows("rollouts")
    assert row["reward"] == 0.0


def test_a_reward_on_a_trace_alone_is_on_the_root_span_of_its_rollout(recorder: Recorder) -> None:
    recorder.send(recorder.root_span(attempt=1), recorder.call(attempt=1))
    trace_only = SpanContext(recorder.root.trace_id, b"")
    recorder.send(recorder.reward(0.5, START, context=trace_only, **ANONYMOUS))
    (row,) = recorder.rows("rewards")
    assert (row["attempt"], row["span_id"]) == (1, recorder.root.span_id.hex())


def test_the_judged_span_knows_its_rollout_best(collector: Any) -> None:
    first, second = Recorder(collector), Recorder(collector)
    second.root = first.root  # both in one trace; only the first has a root span
    call = second.call(attempt=1)
    on_call = SpanContext(call.trace_id, call.span_id)
    unseen = SpanContext(call.trace_id, secrets.token_bytes(8))
    first.send(
        first.root_span(),
        call,
        first.reward(1.0, START, context=on_call, name="says nothing", **ANONYMOUS),
        first.reward(2.0, START, context=on_call, name="says the first"),
        second.reward(3.0, START, context=on_call, name="says attempt 0"),
        second.reward(4.0, START, context=unseen, name="by what it says"),
        second.reward(5.0, START, context=unseen, name="by its trace", **ANONYMOUS),
    )
    assert {row["name"]: row["attempt"] for row in second.rows("rewards")} == {
        "says nothing": 1,
        "says the first": 1,
        "says attempt 0": 1,
        "by what it says": 0,
    }
    assert [row["name"] for row in first.rows("rewards")] == ["by its trace"]


def test_without_a_rollout_the_trace_is_the_rollout(collector: Any) -> None:
    recorder = Recorder(collector)
    recorder.rollout_id = recorder.root.trace_id.hex()
    recorder.send(recorder.reward(0.5, START, **{names.ROLLOUT_ID: None}))
    (row,) = recorder.rows("rewards")
    assert row["score"] == 0.5
