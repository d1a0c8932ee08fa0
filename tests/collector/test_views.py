"""What the views make of spans and events: sampled choices, rewards, rollouts, agents."""

import json
import secrets
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad import names, otlp
from tracegrad.otlp import SpanContext

STEP = {"job": "job", "policy": "", "from_version": 0, "to_version": 1, "algorithm": "grpo", "config": "{}"}
SAMPLE = {"span_id": "", "trace_id": "t", "rollout_id": "r", "attempt": 0, "agent": "", "reward": 1.0}
START = 1_790_000_000_000_000_000
ANONYMOUS: dict[str, otlp.Value] = {names.ROLLOUT_ID: None, names.ROLLOUT_ATTEMPT: None}


class Recorder:
    """Builds the spans of one rollout as the launcher, the sidecar and graders send them, and sends them."""

    def __init__(self, collector: Any, rollout_id: str | None = None) -> None:
        self.collector = collector
        self.root = SpanContext.new()
        self.rollout_id = secrets.token_hex(8) if rollout_id is None else rollout_id

    def identity(self, attempt: int = 0) -> dict[str, otlp.Value]:
        return {names.ROLLOUT_ID: self.rollout_id, names.ROLLOUT_ATTEMPT: attempt, names.TASK_ID: "task-1"}

    def call(self, parent: bytes | None = None, attempt: int = 0, **changes: otlp.Value) -> Span:
        """A trainable call. `changes` by the constant's name; None leaves an attribute out."""
        values: dict[str, otlp.Value] = self.identity(attempt) | {
            names.TRAINABLE: True,
            names.POLICY_NAME: "policy",
            names.POLICY_VERSION: 3,
            names.PROMPT_TOKEN_IDS: "[1,2,4294967295]",
            names.RESPONSE_TOKEN_IDS: "[7,8]",
            names.RESPONSE_LOGPROBS: "[-0.5,-1.25e-3]",
            names.REQUEST_MODEL: "asked",
            names.RESPONSE_MODEL: "served",
            names.RESPONSE_ID: "chatcmpl-1",
            names.FINISH_REASONS: ["stop"],
            names.SAMPLING: '{"temperature":1.0}',
            names.INPUT_MESSAGES: '[{"role":"user"}]',
            names.OUTPUT_MESSAGES: '[{"role":"assistant"}]',
            names.RETRY_COUNT: 1,
        }
        values |= {getattr(names, name): value for name, value in changes.items()}
        return otlp.span(
            "chat served",
            SpanContext.new(self.root.trace_id),
            parent_span_id=self.root.span_id if parent is None else parent,
            kind=Span.SPAN_KIND_SERVER,
            start_ns=START + 1_000,
            end_ns=START + 5_000,
            values=values,
        )

    def plain(self, name: str, parent: bytes, **values: otlp.Value) -> Span:
        """A span of the agent's own tracer. Dots of attribute names are written as double underscores."""
        named = {key.replace("__", "."): value for key, value in values.items()}
        return otlp.span(
            name, SpanContext.new(self.root.trace_id), parent_span_id=parent, start_ns=START, end_ns=START, values=named
        )

    def root_span(self, status: str = "succeeded", attempt: int = 0, **values: otlp.Value) -> Span:
        ended = {
            names.ROLLOUT_STATUS: status,
            names.ROLLOUT_SPLIT: "train",
            names.EXIT_CODE: 0,
            names.ROLLOUT_STDOUT: "42\n",
            names.ROLLOUT_STDERR: "warned",
        }
        return otlp.span(
            names.ROOT_SPAN_NAME,
            self.root,
            start_ns=START,
            end_ns=START + 9_000,
            values=self.identity(attempt) | ended | {getattr(names, name): value for name, value in values.items()},
        )

    def reward(
        self,
        score: float | None,
        at_ns: int,
        name: str = "exact",
        context: SpanContext | None = None,
        **values: otlp.Value,
    ) -> LogRecord:
        given: dict[str, otlp.Value] = {
            names.EVALUATION_NAME: name,
            names.EVALUATION_SCORE: score,
            names.EVALUATION_LABEL: "ok",
            names.EVALUATION_EXPLANATION: "because",
        }
        record = otlp.event(names.EVALUATION_EVENT, context or self.root, given | self.identity() | values)
        record.time_unix_nano = at_ns
        return record

    def send(self, *records: Span | LogRecord, service: str = "tracegrad.sidecar") -> None:
        spans = [record for record in records if isinstance(record, Span)]
        if spans:
            traces = ExportTraceServiceRequest()
            resource = traces.resource_spans.add()
            resource.resource.attributes.add(key="service.name").value.string_value = service
            resource.scope_spans.add().spans.extend(spans)
            assert self.collector.send(traces).status == 200
        if events := [record for record in records if isinstance(record, LogRecord)]:
            logs = ExportLogsServiceRequest()
            log_resource = logs.resource_logs.add()
            log_resource.resource.attributes.add(key="service.name").value.string_value = service
            log_resource.scope_logs.add().log_records.extend(events)
            assert self.collector.send(logs).status == 200

    def rows(self, view: str) -> list[dict[str, Any]]:
        answer = self.collector.sql(
            f"SELECT * FROM {view} WHERE rollout_id = '{self.rollout_id}' ORDER BY ALL FORMAT JSONEachRow"
        )
        return [json.loads(line) for line in answer.splitlines()]


@pytest.fixture
def recorder(collector: Any) -> Recorder:
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
            "prompt_token_ids": [1, 2, 4294967295],
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


def test_a_rollout_runs_until_its_root_span_arrives(recorder: Recorder) -> None:
    recorder.send(recorder.call(), recorder.call(TRAINABLE=False))
    (running,) = recorder.rows("rollouts")
    assert running == {
        "rollout_id": recorder.rollout_id,
        "attempt": 0,
        "task_id": "task-1",
        "trace_id": recorder.root.trace_id.hex(),
        "status": "running",
        "error_type": "",
        "started_at": "2026-09-21 14:13:20.000001000",
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
    }
    recorder.send(recorder.root_span("failed", ERROR_TYPE="exit_code", EXIT_CODE=3))
    (ended,) = recorder.rows("rollouts")
    assert ended == running | {
        "status": "failed",
        "error_type": "exit_code",
        "started_at": "2026-09-21 14:13:20.000000000",
        "ended_at": "2026-09-21 14:13:20.000009000",
        "root_span_id": recorder.root.span_id.hex(),
        "split": "train",
        "exit_code": 3,
        "stdout": "42\n",
        "stderr": "warned",
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


def test_the_agent_is_the_nearest_one_above_the_call(recorder: Recorder) -> None:
    root = recorder.root.span_id
    outer = recorder.plain(
        "invoke_agent planner", root, gen_ai__operation__name="invoke_agent", gen_ai__agent__name="planner"
    )
    step = recorder.plain("step", outer.span_id)
    inner = recorder.plain("Coder.run", step.span_id, openinference__span__kind="AGENT")
    post = recorder.plain("POST", inner.span_id)
    calls = {"planner": recorder.call(step.span_id), "Coder.run": recorder.call(post.span_id), "": recorder.call()}
    agents = (outer, step, inner, post)
    recorder.send(*agents, service="agent")
    recorder.send(*agents, service="agent")  # again: ancestors are not multiplied
    recorder.send(*calls.values(), recorder.root_span())
    named = {row["span_id"]: row["agent"] for row in recorder.rows("llm_calls")}
    assert named == {call.span_id.hex(): agent for agent, call in calls.items()}
    (rollout,) = recorder.rows("rollouts")
    assert rollout["agents"] == ["Coder.run", "planner"]


def test_parents_in_a_circle_do_no_harm(recorder: Recorder) -> None:
    one, two = (
        recorder.plain("one", b"\x01" * 8),
        recorder.plain("two", b"\x01" * 8, gen_ai__operation__name="invoke_agent"),
    )
    one.parent_span_id, two.parent_span_id = two.span_id, one.span_id
    call = recorder.call(one.span_id)
    recorder.send(one, two, call)
    (row,) = recorder.rows("llm_calls")
    assert row["agent"] == "two"


def test_tables_of_training_take_rows_and_replace_equal_ones(collector: Any) -> None:
    step, client = secrets.token_hex(4), collector.client()
    policy = f"policy-{step}"
    now = datetime.now(UTC)
    for sha256 in ("old", "new"):
        client.insert(
            "policies",
            [[policy, 1, sha256, "/w/1/model.safetensors", 0, step], [policy, 0, "base", "/w/0", None, ""]],
            column_names=["name", "version", "sha256", "path", "parent_version", "step_id"],
        )
    versions = client.query(
        "SELECT version, sha256, parent_version FROM policies FINAL WHERE name = {name:String} ORDER BY version",
        parameters={"name": policy},
    )
    assert versions.result_rows == [(0, "base", None), (1, "new", 0)]
    recorded = STEP | {"step_id": step, "metrics": '{"loss":0.5}', "started_at": now, "ended_at": now}
    used = SAMPLE | {
        "step_id": step,
        "span_id": "s1",
        "advantage": 0.57,
        "n_tokens": 30,
        "used": True,
        "drop_reason": "",
    }
    dropped = used | {"span_id": "s2", "reward": None, "advantage": None, "used": False, "drop_reason": "no_token_ids"}
    for _ in range(2):
        client.insert("train_steps", [list(recorded.values())], column_names=list(recorded))
        client.insert("train_samples", [list(used.values()), list(dropped.values())], column_names=list(used))
    lineage = client.query(
        "SELECT span_id, advantage, used, to_version, JSONExtractFloat(metrics, 'loss') AS loss "
        "FROM train_samples FINAL INNER JOIN train_steps FINAL USING step_id "
        "WHERE step_id = {step:String} ORDER BY span_id",
        parameters={"step": step},
    )
    assert lineage.result_rows == [("s1", 0.57, True, 1, 0.5), ("s2", None, False, 1, 0.5)]
    client.close()


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
