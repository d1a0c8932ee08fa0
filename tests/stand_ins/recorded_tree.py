"""One rollout with a whole tree of spans, as launcher, sidecar, instrumentation and reward would send it."""

import json
import secrets
import time
import urllib.request
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from recorded_agents import RecordedAgents

from tracegrad import names, otlp

MS = 1_000_000


class RecordedTree:
    """Spans of one rollout in the order in which they began, a millisecond apart; sent together."""

    def __init__(self, agents: RecordedAgents, task: str = "tree") -> None:
        self.rollout_id = secrets.token_hex(8)
        self.root = otlp.SpanContext.new()
        self._agents = agents
        self._identity = {
            names.ROLLOUT_ID: self.rollout_id,
            names.ROLLOUT_ATTEMPT: 0,
            names.TASK_ID: f"{agents.policy}.{task}",
        }
        self._began_ns = self._now_ns = time.time_ns() - 1000 * MS
        self._traces, self._logs = ExportTraceServiceRequest(), ExportLogsServiceRequest()
        self._rewarded = self._calls = 0

    def span(self, name: str, under: bytes | None = None, error: str | None = None, **values: Any) -> bytes:
        """Any span, under the root where nothing else is said; its id."""
        return self._add("instrumentation", name, under, error, values)

    def agent(self, name: str, under: bytes | None = None, **values: Any) -> bytes:
        """An agent's span."""
        told = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
        return self.span(f"invoke_agent {name}", under, **told | values)

    def tool(self, name: str, under: bytes, call_id: str = "", error: str | None = None) -> bytes:
        """A tool's span, which may tell the id of the tool call."""
        told = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id or None,
        }
        return self.span(f"execute_tool {name}", under, error, **told | ({names.ERROR_TYPE: error} if error else {}))

    def call(
        self,
        under: bytes,
        prompt: list[int],
        response: list[int],
        *,
        asks: tuple[str, ...] = (),
        messages: tuple[Any, Any] = ([], []),
        error: str | None = None,
        **values: Any,
    ) -> bytes:
        """A call of the policy. `asks`: ids of its tool calls."""
        self._calls += 1
        asked, said = messages
        parts = [{"type": "tool_call", "id": one, "name": "calc", "arguments": {}} for one in asks]
        told = {
            names.POLICY_NAME: self._agents.policy,
            names.POLICY_VERSION: 0,
            names.REQUEST_MODEL: self._agents.policy,
            names.RESPONSE_ID: f"chatcmpl-{self.rollout_id}-{self._calls}",
            names.PROMPT_TOKEN_IDS: json.dumps(prompt),
            names.RESPONSE_TOKEN_IDS: json.dumps(response),
            names.RESPONSE_LOGPROBS: json.dumps([-0.5] * len(response)),
            names.SAMPLING: '{"temperature":1.0}',
            names.TRAINABLE: True,
            names.INPUT_MESSAGES: json.dumps(asked),
            names.OUTPUT_MESSAGES: json.dumps(said or [{"role": "assistant", "parts": parts, "finish_reason": "stop"}]),
        }
        return self._add("tracegrad.sidecar", f"chat {self._agents.policy}", under, error, told | values)

    def reward(self, span_id: bytes, name: str, score: float) -> None:
        """An evaluation of one span."""
        context = otlp.SpanContext(self.root.trace_id, span_id)
        told = {names.EVALUATION_NAME: name, names.EVALUATION_SCORE: float(score)}
        told |= {names.ROLLOUT_ID: self.rollout_id, names.ROLLOUT_ATTEMPT: 0}
        resource = Resource(attributes=otlp.attributes({"service.name": "tracegrad.reward"}))
        records = self._logs.resource_logs.add(resource=resource).scope_logs.add().log_records
        records.append(otlp.event(names.EVALUATION_EVENT, context, told))
        self._rewarded += 1

    def move(self, span_id: bytes, under: bytes) -> None:
        """Give a span another parent, such as one that began later."""
        for resource in self._traces.resource_spans:
            for span in resource.scope_spans[0].spans:
                if span.span_id == span_id:
                    span.parent_span_id = under

    def send(self, status: str = "succeeded", error_type: str | None = None) -> str:
        """All of it, ended by the launcher; the rollout's id, once SQL shows it."""
        ending = {names.ROLLOUT_STATUS: status, names.ROLLOUT_SPLIT: "train", names.ERROR_TYPE: error_type}
        self._append(
            "tracegrad.rollout",
            otlp.span(
                names.ROOT_SPAN_NAME,
                self.root,
                start_ns=self._began_ns,
                end_ns=self._now_ns + MS,
                error=error_type,
                values=self._identity | ending,
            ),
        )
        self._post("/v1/traces", self._traces.SerializeToString())
        if self._rewarded:
            self._post("/v1/logs", self._logs.SerializeToString())
        query = (
            "SELECT (SELECT count() FROM rollout_tree WHERE rollout_id = {id:String}) AS spans, "
            "(SELECT count() FROM rewards WHERE rollout_id = {id:String}) AS rewards"
        )
        expected = {"spans": len(self._traces.resource_spans), "rewards": self._rewarded}
        deadline = time.monotonic() + 30
        while self._agents.sql(query, id=self.rollout_id) != [expected]:
            assert time.monotonic() < deadline, f"the store does not show {expected}"
            time.sleep(0.02)
        return self.rollout_id

    def _add(self, service: str, name: str, under: bytes | None, error: str | None, values: dict[str, Any]) -> bytes:
        context = otlp.SpanContext.new(self.root.trace_id)
        self._now_ns += MS
        span = otlp.span(
            name,
            context,
            parent_span_id=self.root.span_id if under is None else under,
            start_ns=self._now_ns,
            end_ns=self._now_ns + MS // 2,
            error=error,
            values=(self._identity if service == "tracegrad.sidecar" else {}) | values,
        )
        self._append(service, span)
        return context.span_id

    def _append(self, service: str, span: Any) -> None:
        resource = Resource(attributes=otlp.attributes({"service.name": service}))
        self._traces.resource_spans.add(resource=resource).scope_spans.add().spans.append(span)

    def _post(self, path: str, body: bytes) -> None:
        headers = {"content-type": "application/x-protobuf"}
        request = urllib.request.Request(self._agents.collector.otlp + path, body, headers)
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
