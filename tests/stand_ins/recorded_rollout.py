"""A rollout as launcher, sidecar, the agent's own tracer and graders tell a collector of it, span by span."""

import json
import secrets
from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad import names, otlp
from tracegrad.otlp import SpanContext

START = 1_790_000_000_000_000_000
"""2026-09-21 14:13:20, which may be long ago."""
FAR_AHEAD = 4_102_444_800_000_000_000
"""2100-01-01: what happens then is not long ago."""
ANONYMOUS: dict[str, otlp.Value] = {names.ROLLOUT_ID: None, names.ROLLOUT_ATTEMPT: None}
"""Values of an evaluation that names no rollout."""


def read(collector: Any, query: str) -> list[dict[str, Any]]:
    """The rows of a query."""
    return [json.loads(line) for line in collector.sql(query + " FORMAT JSONEachRow").splitlines()]


class Recorder:
    """Builds the spans of one rollout as the launcher, the sidecar and graders send them, and sends them."""

    def __init__(self, collector: Any, rollout_id: str | None = None, start: int = START) -> None:
        self.collector = collector
        self.start = start
        self.root = SpanContext.new()
        self.rollout_id = secrets.token_hex(8) if rollout_id is None else rollout_id

    def identity(self, attempt: int = 0) -> dict[str, otlp.Value]:
        """What each span of the rollout says of it."""
        return {names.ROLLOUT_ID: self.rollout_id, names.ROLLOUT_ATTEMPT: attempt, names.TASK_ID: "task-1"}

    def call(self, parent: bytes | None = None, attempt: int = 0, **changes: otlp.Value) -> Span:
        """A trainable call. `changes` by the constant's name; None leaves an attribute out."""
        values: dict[str, otlp.Value] = self.identity(attempt) | {
            names.TRAINABLE: True,
            names.POLICY_NAME: "policy",
            names.POLICY_VERSION: 3,
            names.PROMPT_TOKEN_IDS: "[1,2,999999999]",
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
            start_ns=self.start + 1_000,
            end_ns=self.start + 5_000,
            values=values,
        )

    def plain(
        self, name: str, parent: bytes, values: Mapping[str, otlp.Value] | None = None, *, at: range | None = None
    ) -> Span:
        """A span of the agent's own tracer, from and to nanoseconds after the start."""
        when = at or range(0)
        return otlp.span(
            name,
            SpanContext.new(self.root.trace_id),
            parent_span_id=parent,
            start_ns=self.start + when.start,
            end_ns=self.start + when.stop,
            values=values or {},
        )

    def agent(self, name: str, parent: bytes, at: range | None = None) -> Span:
        """A span of an agent's invocation."""
        values = {names.OPERATION_NAME: "invoke_agent", names.AGENT_NAME: name}
        return self.plain(f"invoke_agent {name}", parent, values, at=at)

    def root_span(self, status: str = "succeeded", attempt: int = 0, **values: otlp.Value) -> Span:
        """The launcher's. `values` by the constant's name."""
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
            start_ns=self.start,
            end_ns=self.start + 9_000,
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
        """An evaluation, on the root span unless told otherwise."""
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
        """Export all of them."""
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
        """What a view shows of the rollout."""
        return read(self.collector, f"SELECT * FROM {view} WHERE rollout_id = '{self.rollout_id}' ORDER BY ALL")

    def agents(self) -> dict[str, str]:
        """The agent of each call, by span id."""
        return {row["span_id"]: row["agent"] for row in self.rows("llm_calls")}
