"""Runs of agents as the store would have them: what launcher, sidecar and reward send, without any of them.

`RecordedAgents.run` sends real OTLP to a real collector and returns once SQL shows the rollout.
"""

import json
import secrets
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
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
class RecordedAgents:
    """Writes what launcher, sidecar and reward would write about runs of agents on one policy."""

    collector: Collector
    policy: str
    sql: Sql
    written: int = 0

    def run(
        self,
        task: str,
        reward: float | None,
        n_calls: int = 2,
        *,
        version: int = 0,
        split: str = "train",
        finished: bool = True,
        **values: Any,
    ) -> str:
        """One rollout, visible to SQL when this returns: its id. `values` change attributes of its calls."""
        rollout_id, root = secrets.token_hex(8), otlp.SpanContext.new()
        task_id, now = f"{self.policy}.{task}", time.time_ns()
        spans = []
        for index in range(n_calls):
            self.written += 1
            start_ns = now + index * 1_000_000
            attributes = {
                names.ROLLOUT_ID: rollout_id,
                names.ROLLOUT_ATTEMPT: 0,
                names.TASK_ID: task_id,
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
                **values,
            }
            spans.append(
                otlp.span(
                    f"chat {self.policy}",
                    otlp.SpanContext.new(root.trace_id),
                    parent_span_id=root.span_id,
                    kind=Span.SPAN_KIND_SERVER,
                    start_ns=start_ns,
                    end_ns=start_ns + 900_000,
                    values=attributes,
                )
            )
        self._send_spans("tracegrad.sidecar", spans)
        if finished:
            root_values = {
                names.ROLLOUT_ID: rollout_id,
                names.ROLLOUT_ATTEMPT: 0,
                names.TASK_ID: task_id,
                names.ROLLOUT_STATUS: "succeeded",
                names.ROLLOUT_SPLIT: split,
            }
            root_span = otlp.span(names.ROOT_SPAN_NAME, root, start_ns=now, end_ns=now + 5_000_000, values=root_values)
            self._send_spans("tracegrad.rollout", [root_span])
        if reward is not None:
            self._send_reward(rollout_id, root, reward)
        self._wait_for(rollout_id, n_calls, finished, reward)
        return rollout_id

    def pair(self, task: str, **values: Any) -> list[str]:
        """Two rollouts of a task, the first rewarded, the second not."""
        return [self.run(task, 1.0, **values), self.run(task, 0.0, **values)]

    def _send_reward(self, rollout_id: str, root: otlp.SpanContext, reward: float) -> None:
        request = ExportLogsServiceRequest()
        logs = request.resource_logs.add(
            resource=Resource(attributes=otlp.attributes({"service.name": "tracegrad.reward"}))
        )
        event = otlp.event(
            names.EVALUATION_EVENT,
            root,
            {
                names.EVALUATION_NAME: "answer",
                names.EVALUATION_SCORE: float(reward),
                names.ROLLOUT_ID: rollout_id,
                names.ROLLOUT_ATTEMPT: 0,
            },
        )
        logs.scope_logs.add().log_records.append(event)
        self._post("/v1/logs", request.SerializeToString())

    def _send_spans(self, service: str, spans: list[Span]) -> None:
        request = ExportTraceServiceRequest()
        resource_spans = request.resource_spans.add(
            resource=Resource(attributes=otlp.attributes({"service.name": service}))
        )
        resource_spans.scope_spans.add().spans.extend(spans)
        self._post("/v1/traces", request.SerializeToString())

    def _post(self, path: str, body: bytes) -> None:
        headers = {"content-type": "application/x-protobuf"}
        with urllib.request.urlopen(urllib.request.Request(self.collector.otlp + path, body, headers)) as answer:
            assert answer.status == 200

    def _wait_for(self, rollout_id: str, n_calls: int, finished: bool, reward: float | None) -> None:
        deadline = time.monotonic() + 20
        while True:
            found = self.sql(
                "SELECT status, n_calls, reward FROM rollouts WHERE rollout_id = {id:String}", id=rollout_id
            )
            expected = ("succeeded" if finished else "running", n_calls, reward)
            if [tuple(row.values()) for row in found] == [expected]:
                return
            assert time.monotonic() < deadline, f"the store shows {found}, not {expected}"
            time.sleep(0.02)
