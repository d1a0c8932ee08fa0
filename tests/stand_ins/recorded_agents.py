"""Runs of agents as the store would have them: what launcher, sidecar and reward send, without any of them.

Real OTLP goes to a real collector. Runs are sent together when a batch ends, and visible to SQL then.
"""

import json
import secrets
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad import names, otlp

Sql = Callable[..., list[dict[str, Any]]]
"""Asks the store: a query and its parameters -> rows."""


@dataclass(frozen=True)
class Collector:
    """A running collector: OTLP in, SQL out."""

    otlp: str
    clickhouse: str


@dataclass
class _Batch:
    """What is sent together. `expected`: rollout id -> status, calls and reward that SQL must show."""

    traces: ExportTraceServiceRequest = field(default_factory=ExportTraceServiceRequest)
    logs: ExportLogsServiceRequest = field(default_factory=ExportLogsServiceRequest)
    expected: dict[str, tuple[str, int, float | None]] = field(default_factory=dict)

    def add_span(self, service: str, span: Span) -> None:
        spans = self.traces.resource_spans.add(resource=_resource(service)).scope_spans.add().spans
        spans.append(span)

    def add_reward(self, root: otlp.SpanContext, rollout_id: str, reward: float, name: str = "answer") -> None:
        values = {
            names.EVALUATION_NAME: name,
            names.EVALUATION_SCORE: float(reward),
            names.ROLLOUT_ID: rollout_id,
            names.ROLLOUT_ATTEMPT: 0,
        }
        records = self.logs.resource_logs.add(resource=_resource("tracegrad.reward")).scope_logs.add().log_records
        records.append(otlp.event(names.EVALUATION_EVENT, root, values))


@dataclass
class RecordedAgents:
    """Writes what launcher, sidecar and reward would write about runs of agents on one policy."""

    collector: Collector
    policy: str
    sql: Sql
    written: int = 0
    runs: dict[str, tuple[otlp.SpanContext, str, int]] = field(default_factory=dict)
    _open: _Batch | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send all runs of the block at its end."""
        self._open = batch = _Batch()
        try:
            yield
        finally:
            self._open = None
        self._send(batch)

    def run(
        self,
        task: str,
        reward: float | None,
        n_calls: int = 2,
        *,
        version: int | None = 0,
        split: str = "train",
        finished: bool = True,
        status: str = "succeeded",
        age_s: float = 0.0,
        **values: Any,
    ) -> str:
        """One rollout that began `age_s` ago and took 9 ms: its id. `status`: what the store shows of it.

        `values` change attributes of its calls; a list has one value for each call.
        """
        if self._open is None:
            with self.together():
                return self.run(
                    task,
                    reward,
                    n_calls,
                    version=version,
                    split=split,
                    finished=finished,
                    status=status,
                    age_s=age_s,
                    **values,
                )
        rollout_id, root, now = secrets.token_hex(8), otlp.SpanContext.new(), time.time_ns() - round(age_s * 1e9)
        self.runs[rollout_id] = root, task, now
        identity = {
            names.ROLLOUT_ID: rollout_id,
            names.ROLLOUT_ATTEMPT: 0,
            names.TASK_ID: f"{self.policy}.{task}",
        }
        for index in range(n_calls):
            own = {name: value[index] if isinstance(value, list) else value for name, value in values.items()}
            attributes = identity | self._call_values(rollout_id, index, version) | own
            self._open.add_span("tracegrad.sidecar", _call_span(root, now + index * 1_000_000, attributes))
        if finished:
            ending = {names.ROLLOUT_STATUS: status, names.ROLLOUT_SPLIT: split}
            span = otlp.span(names.ROOT_SPAN_NAME, root, start_ns=now, end_ns=now + 9_000_000, values=identity | ending)
            self._open.add_span("tracegrad.rollout", span)
        if reward is not None:
            self._open.add_reward(root, rollout_id, reward)
        self._open.expected[rollout_id] = (status if finished or status == "lost" else "running", n_calls, reward)
        return rollout_id

    def pair(self, task: str, **values: Any) -> list[str]:
        """Two rollouts of a task, the first with reward 1, the second with 0."""
        if self._open is None:
            with self.together():
                return self.pair(task, **values)
        return [self.run(task, 1.0, **values), self.run(task, 0.0, **values)]

    def judge(self, rollout_id: str, name: str, score: float) -> None:
        """One more evaluation of a run that the store has, visible to SQL when this returns."""
        batch = _Batch()
        batch.add_reward(self.runs[rollout_id][0], rollout_id, score, name)
        self._post("/v1/logs", batch.logs.SerializeToString())
        query = "SELECT score FROM rewards WHERE rollout_id = {id:String} AND name = {name:String}"
        deadline = time.monotonic() + 30
        while not self.sql(query, id=rollout_id, name=name):
            assert time.monotonic() < deadline, f"no {name} in the store"
            time.sleep(0.02)

    def late_call(self, rollout_id: str, index: int) -> None:
        """One more call of a run, whose span comes only now."""
        root, task, began_ns = self.runs[rollout_id]
        identity = {names.ROLLOUT_ID: rollout_id, names.ROLLOUT_ATTEMPT: 0, names.TASK_ID: f"{self.policy}.{task}"}
        values = identity | self._call_values(rollout_id, index, 0)
        batch = _Batch()
        batch.add_span("tracegrad.sidecar", _call_span(root, began_ns + index * 1_000_000, values))
        self._post("/v1/traces", batch.traces.SerializeToString())

    def _call_values(self, rollout_id: str, index: int, version: int | None) -> dict[str, otlp.Value]:
        self.written += 1
        return {
            names.POLICY_NAME: self.policy,
            names.POLICY_VERSION: version,
            names.REQUEST_MODEL: self.policy,
            names.RESPONSE_ID: f"chatcmpl-{rollout_id}-{index}",
            names.PROMPT_TOKEN_IDS: json.dumps([1, 2, index]),
            names.RESPONSE_TOKEN_IDS: json.dumps([self.written % 50, 3]),
            names.RESPONSE_LOGPROBS: json.dumps([-0.5, -0.25]),
            names.SAMPLING: '{"temperature":1.0}',
            names.TRAINABLE: True,
            names.INPUT_MESSAGES: "[]",
        }

    def _send(self, batch: _Batch) -> None:
        for path, request in (("/v1/traces", batch.traces), ("/v1/logs", batch.logs)):
            if request.ByteSize():
                self._post(path, request.SerializeToString())
        query = "SELECT rollout_id, status, n_calls, reward FROM rollouts WHERE rollout_id IN {ids:Array(String)}"
        deadline = time.monotonic() + 30
        while True:
            rows = [tuple(row.values()) for row in self.sql(query, ids=list(batch.expected))]
            if {row[0]: row[1:] for row in rows} == batch.expected:
                return
            assert time.monotonic() < deadline, f"the store shows {rows}, not {batch.expected}"
            time.sleep(0.02)

    def _post(self, path: str, body: bytes) -> None:
        headers = {"content-type": "application/x-protobuf"}
        with urllib.request.urlopen(urllib.request.Request(self.collector.otlp + path, body, headers)) as answer:
            assert answer.status == 200


def _call_span(root: otlp.SpanContext, start_ns: int, values: dict[str, Any]) -> Span:
    return otlp.span(
        f"chat {values[names.REQUEST_MODEL]}",
        otlp.SpanContext.new(root.trace_id),
        parent_span_id=root.span_id,
        kind=Span.SPAN_KIND_SERVER,
        start_ns=start_ns,
        end_ns=start_ns + 900_000,
        values=values,
    )


def _resource(service: str) -> Resource:
    return Resource(attributes=otlp.attributes({"service.name": service}))
