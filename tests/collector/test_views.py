"""What the views make of a rollout's spans: sampled choices and attempts."""

import json
from typing import Any

import numpy as np
import pytest
from recorded_rollout import FAR_AHEAD, START, Recorder

from tracegrad.otlp import SpanContext


@pytest.fixture
def recorder(collector: Any) -> Recorder:
    """A rollout of its own."""
    return Recorder(collector)


def test_a_call_is_one_row_with_its_tokens(recorder: Recorder) -> None:
    call = recorder.call()
    recorder.send(call)
    assert recorder.rows("llm_calls") == [
        {
            "trace_id": call.trace_id.hex(),
            "span_id": call.span_id.hex(),
            "parent_span_id": recorder.root.span_id.hex(),
            "rollout_id": recorder.rollout_id,
            "attempt": 0,
            "task_id": "task-1",
            "agent": "",
            "policy": "policy",
            "policy_version": 3,
            "model": "served",
            "started_at": "2026-09-21 14:13:20.000001000",
            "ended_at": "2026-09-21 14:13:20.000005000",
            "prompt_token_ids": [1, 2, 999999999],
            "response_token_ids": [7, 8],
            "logprobs": [-0.5, -0.00125],
            "finish_reason": "stop",
            "trainable": True,
            "untrainable_reason": "",
            "error_type": "",
            "input_messages": '[{"role":"user"}]',
            "output_messages": '[{"role":"assistant"}]',
            "sampling": '{"temperature":1.0}',
            "response_id": "chatcmpl-1",
            "choice_index": 0,
            "retry_count": 1,
            "tool_call_ids": [],
            "answer_faults": [],
        }
    ]


def test_an_untrainable_call_says_why_and_other_spans_are_no_calls(recorder: Recorder) -> None:
    failed = recorder.call(
        TRAINABLE=False, UNTRAINABLE_REASON="error", ERROR_TYPE="502", PROMPT_TOKEN_IDS=None, RESPONSE_MODEL=None
    )
    several = recorder.call(TRAINABLE=None)  # a request with n > 1: its choices carry the tokens
    choice = recorder.call(parent=several.span_id, CHOICE_INDEX=1)
    recorder.send(failed, several, choice, recorder.root_span())
    rows = {row["span_id"]: row for row in recorder.rows("llm_calls")}
    assert rows.keys() == {failed.span_id.hex(), choice.span_id.hex()}
    assert rows[choice.span_id.hex()]["choice_index"] == 1
    row = rows[failed.span_id.hex()]
    told = (row["trainable"], row["untrainable_reason"], row["error_type"], row["prompt_token_ids"], row["model"])
    assert told == (False, "error", "502", [], "asked")


def test_a_version_nobody_knows_is_null_and_version_0_is_0(recorder: Recorder) -> None:
    unknown = recorder.call(TRAINABLE=False, UNTRAINABLE_REASON="mixed_versions", POLICY_VERSION=None)
    first = recorder.call(POLICY_VERSION=0)
    recorder.send(unknown, first)
    versions = {row["span_id"]: row["policy_version"] for row in recorder.rows("llm_calls")}
    assert versions == {unknown.span_id.hex(): None, first.span_id.hex(): 0}


def test_a_call_without_a_task_id_has_that_of_its_root_span(recorder: Recorder) -> None:
    recorder.send(recorder.call(TASK_ID=None))
    assert [row["task_id"] for row in recorder.rows("llm_calls")] == [""]
    recorder.send(recorder.call(TASK_ID="own"), recorder.call(TASK_ID=None, attempt=1), recorder.root_span())
    tasks = [(row["attempt"], row["task_id"]) for row in recorder.rows("llm_calls")]
    assert sorted(tasks) == [(0, "own"), (0, "task-1"), (1, "")]


def test_what_is_delivered_twice_counts_once(recorder: Recorder) -> None:
    spans = [recorder.call(), recorder.call(), recorder.root_span()]
    reward = recorder.reward(1.0, START)
    recorder.send(*spans, reward)
    recorder.send(*spans, reward)
    assert len(recorder.rows("llm_calls")) == 2
    (rollout,) = recorder.rows("rollouts")
    assert (rollout["n_calls"], rollout["n_trainable"], rollout["reward"]) == (2, 2, 1.0)


def test_a_rollout_runs_until_its_root_span_arrives(collector: Any) -> None:
    recorder = Recorder(collector, start=FAR_AHEAD)
    recorder.send(recorder.call(), recorder.call(TRAINABLE=False))
    (running,) = recorder.rows("rollouts")
    assert running == {
        "rollout_id": recorder.rollout_id,
        "attempt": 0,
        "task_id": "task-1",
        "trace_id": recorder.root.trace_id.hex(),
        "status": "running",
        "error_type": "",
        "started_at": "2100-01-01 00:00:00.000001000",
        "ended_at": None,
        "n_calls": 2,
        "n_trainable": 1,
        "reward": None,
        "agents": [],
        "root_span_id": "",
        "split": "",
        "exit_code": None,
        "stdout": "",
        "stderr": "",
        "last_seen_at": "2100-01-01 00:00:00.000005000",
        "policies": ["policy"],
    }
    recorder.send(recorder.root_span("failed", ERROR_TYPE="exit_code", EXIT_CODE=3))
    (ended,) = recorder.rows("rollouts")
    assert ended == running | {
        "status": "failed",
        "error_type": "exit_code",
        "started_at": "2100-01-01 00:00:00.000000000",
        "ended_at": "2100-01-01 00:00:00.000009000",
        "root_span_id": recorder.root.span_id.hex(),
        "split": "train",
        "exit_code": 3,
        "stdout": "42\n",
        "stderr": "warned",
        "last_seen_at": "2100-01-01 00:00:00.000009000",
    }


def test_attempts_are_rollouts_of_their_own(recorder: Recorder) -> None:
    recorder.send(recorder.call(), recorder.root_span("timeout", ERROR_TYPE="timeout"))
    recorder.root = SpanContext.new()
    recorder.send(recorder.call(attempt=1), recorder.call(attempt=1), recorder.root_span(attempt=1))
    assert [(row["attempt"], row["status"], row["n_calls"]) for row in recorder.rows("rollouts")] == [
        (0, "timeout", 1),
        (1, "succeeded", 2),
    ]


def test_a_rollout_without_calls_is_shown(recorder: Recorder) -> None:
    recorder.send(recorder.root_span("failed", ERROR_TYPE="spawn", EXIT_CODE=None))
    (row,) = recorder.rows("rollouts")
    assert (row["n_calls"], row["status"], row["exit_code"], row["agents"]) == (0, "failed", None, [])


def test_tokens_come_back_as_arrays(recorder: Recorder) -> None:
    ids, logprobs = list(range(0, 150_000, 7)), [-i / 1024 for i in range(1000)]
    recorder.send(recorder.call(PROMPT_TOKEN_IDS=json.dumps(ids), RESPONSE_LOGPROBS=json.dumps(logprobs)))
    client = recorder.collector.client()
    found = client.query(
        "SELECT prompt_token_ids, logprobs FROM llm_calls WHERE rollout_id = {r:String}",
        parameters={"r": recorder.rollout_id},
    )
    client.close()
    assert found.result_rows[0][0] == ids
    assert found.result_rows[0][1] == np.array(logprobs, np.float32).tolist()
