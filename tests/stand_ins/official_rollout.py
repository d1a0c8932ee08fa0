"""A rollout as protobuf messages, and as the rows that the official ClickHouse exporter appends to its batches."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tracegrad import names, otlp
from tracegrad.otlp import SpanContext

START = 1_772_000_000_123_456_789
RESOURCE = {"service.name": "writer", "host.cores": 8}
SCOPE, SCOPE_VERSION, SCOPE_URL, RESOURCE_URL = "tracer", "1.2.3", "https://scope/1", "https://resource/1"


class Recorded:
    """A rollout: its root, an agent with an event and a link, two calls, and rewards of a call and of the root."""

    def __init__(self, scope: str = SCOPE) -> None:
        self.scope = scope
        root = SpanContext.new()
        agent, call, failed = (SpanContext.new(root.trace_id) for _ in range(3))
        self.rollout_id, self.trace_id = f"official-{secrets.token_hex(6)}", root.trace_id.hex()
        spans = [context.span_id.hex() for context in (root, agent, call, failed)]
        labels = ("TRACE", "ROLLOUT", "ROOT", "AGENT", "CALL", "FAILED")
        self.labels = dict(zip([self.trace_id, self.rollout_id, *spans], labels, strict=True))
        identity: dict[str, otlp.Value] = {
            names.ROLLOUT_ID: self.rollout_id,
            names.ROLLOUT_ATTEMPT: 2,
            names.TASK_ID: "t'1",
        }
        self.spans = [
            _span(
                "rollout", root, b"", (0, 9_000_000), identity | {names.ROLLOUT_STATUS: "succeeded", names.EXIT_CODE: 0}
            ),
            _span("invoke_agent writer", agent, root.span_id, (1, 8_000_000), {names.OPERATION_NAME: "invoke_agent"}),
            _span("chat served", call, agent.span_id, (2, 5_000_000), identity | _called(trainable=True)),
            _span("chat served", failed, agent.span_id, (3, 6_000_000), identity | _called(trainable=False)),
        ]
        self.spans[1].attributes.extend(
            otlp.attributes({names.AGENT_NAME: "writer", "list": ["a", 'b"'], "share": 0.25})
        )
        event = self.spans[1].events.add(name="said", time_unix_nano=START + 17)
        event.attributes.extend(otlp.attributes({"n": 3, "text": "ja"}))
        link = self.spans[1].links.add(trace_id=bytes(range(16)), span_id=bytes(range(8)), trace_state="a=b")
        link.attributes.extend(otlp.attributes({"why": "after"}))
        self.spans[1].trace_state, self.spans[3].status.message = "x=y", "no more"
        self.spans[3].status.code, self.spans[0].status.code = Status.STATUS_CODE_ERROR, Status.STATUS_CODE_OK
        self.records = [_reward(call, 0.5, identity), _reward(root, 1.0, identity)]

    def normal(self, rows: str) -> list[dict[str, Any]]:
        """Rows with labels in place of what is made up."""
        for made_up, label in self.labels.items():
            rows = rows.replace(made_up, label)
        return [json.loads(row) for row in rows.splitlines()]


def _span(name: str, own: SpanContext, parent: bytes, times: tuple[int, int], values: Mapping[str, otlp.Value]) -> Span:
    begin, end = (START + time for time in times)
    return otlp.span(
        name, own, parent_span_id=parent, kind=Span.SPAN_KIND_CLIENT, start_ns=begin, end_ns=end, values=values
    )


def _called(*, trainable: bool) -> dict[str, otlp.Value]:
    return {
        names.TRAINABLE: trainable,
        names.UNTRAINABLE_REASON: None if trainable else "error",
        names.ERROR_TYPE: None if trainable else "503",
        names.POLICY_NAME: "policy",
        names.POLICY_VERSION: 3,
        names.PROMPT_TOKEN_IDS: "[1,2,999999999]",
        names.RESPONSE_TOKEN_IDS: "[7,8]",
        names.RESPONSE_LOGPROBS: "[-0.5,-1.25e-3]",
        names.RESPONSE_MODEL: "served",
        names.FINISH_REASONS: ["stop"],
        names.SAMPLING: '{"temperature":1.0}',
        names.INPUT_MESSAGES: '[{"role":"user","parts":[{"type":"text","content":"Grüße\\n"}]}]',
        names.RETRY_COUNT: 1,
    }


def _reward(judged: SpanContext, score: float, identity: Mapping[str, otlp.Value]) -> LogRecord:
    given: dict[str, otlp.Value] = {names.EVALUATION_NAME: "exact", names.EVALUATION_SCORE: score}
    record = otlp.event(names.EVALUATION_EVENT, judged, identity | given | {names.EVALUATION_LABEL: "ok"})
    record.time_unix_nano = START + 20_000_000
    record.severity_number, record.severity_text = SeverityNumber.SEVERITY_NUMBER_INFO, "INFO"
    record.body.string_value = "judged"
    return record


def text(value: AnyValue) -> str:
    """As the exporter writes an attribute; of a list, as JSON."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return str(value.bool_value).lower()
        case "int_value":
            return str(value.int_value)
        case "double_value":
            return f"{value.double_value:g}"
        case "array_value":
            return json.dumps([item.string_value for item in value.array_value.values], separators=(",", ":"))
    raise AssertionError(f"no such value in this test: {value}")


def texts(attributes: Sequence[KeyValue]) -> dict[str, str]:
    return {one.key: text(one.value) for one in attributes}


def resource() -> dict[str, str]:
    return {key: str(value) for key, value in RESOURCE.items()}


def trace_row(span: Span) -> dict[str, Any]:
    """A span as the exporter appends it to its batch."""
    return {
        "Timestamp": span.start_time_unix_nano,
        "TraceId": span.trace_id.hex(),
        "SpanId": span.span_id.hex(),
        "ParentSpanId": span.parent_span_id.hex(),
        "TraceState": span.trace_state,
        "SpanName": span.name,
        "SpanKind": "Client",
        "ServiceName": RESOURCE["service.name"],
        "ResourceAttributes": resource(),
        "ScopeName": SCOPE,
        "ScopeVersion": SCOPE_VERSION,
        "SpanAttributes": texts(span.attributes),
        "Duration": span.end_time_unix_nano - span.start_time_unix_nano,
        "StatusCode": ["Unset", "Ok", "Error"][span.status.code],
        "StatusMessage": span.status.message,
        "Events.Timestamp": [event.time_unix_nano for event in span.events],
        "Events.Name": [event.name for event in span.events],
        "Events.Attributes": [texts(event.attributes) for event in span.events],
        "Links.TraceId": [link.trace_id.hex() for link in span.links],
        "Links.SpanId": [link.span_id.hex() for link in span.links],
        "Links.TraceState": [link.trace_state for link in span.links],
        "Links.Attributes": [texts(link.attributes) for link in span.links],
    }


def log_row(record: LogRecord) -> dict[str, Any]:
    """A log record as the exporter appends it to its batch."""
    return {
        "Timestamp": record.time_unix_nano,
        "TraceId": record.trace_id.hex(),
        "SpanId": record.span_id.hex(),
        "TraceFlags": record.flags & 0xFF,
        "SeverityText": record.severity_text,
        "SeverityNumber": record.severity_number,
        "ServiceName": RESOURCE["service.name"],
        "Body": record.body.string_value,
        "ResourceSchemaUrl": RESOURCE_URL,
        "ResourceAttributes": resource(),
        "ScopeSchemaUrl": SCOPE_URL,
        "ScopeName": SCOPE,
        "ScopeVersion": SCOPE_VERSION,
        "ScopeAttributes": {},
        "LogAttributes": texts(record.attributes),
        "EventName": record.event_name,
    }


def export(collector: Any, recorded: Recorded) -> Recorded:
    """By OTLP."""
    traces, logs = ExportTraceServiceRequest(), ExportLogsServiceRequest()
    of_spans, of_records = (
        traces.resource_spans.add(schema_url=RESOURCE_URL),
        logs.resource_logs.add(schema_url=RESOURCE_URL),
    )
    scope_spans, scope_logs = (
        of_spans.scope_spans.add(schema_url=SCOPE_URL),
        of_records.scope_logs.add(schema_url=SCOPE_URL),
    )
    for sent in (of_spans.resource, of_records.resource):
        sent.attributes.extend(otlp.attributes(RESOURCE))
    for scope in (scope_spans.scope, scope_logs.scope):
        scope.name, scope.version = recorded.scope, SCOPE_VERSION
    scope_spans.spans.extend(recorded.spans)
    scope_logs.log_records.extend(recorded.records)
    assert collector.send(traces).status == 200
    assert collector.send(logs).status == 200
    return recorded
