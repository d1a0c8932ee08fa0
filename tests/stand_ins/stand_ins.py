"""The two stand-ins of the agent-side tests: an OpenAI-compatible model and an OTLP receiver, on real sockets.

The model plays sidecar too: it keeps each request's path and headers. It asks for the calculator with whatever stands
behind "calc" in the question, and answers with what the tool said.
"""

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it arrived. Ids in hex; `parent_id` is empty for a root."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    kind: int
    start_ns: int
    end_ns: int
    status: int
    message: str
    attributes: dict[str, Any]

    @property
    def is_error(self) -> bool:
        return self.status == 2

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def json(self, name: str) -> Any:
        return json.loads(self.attributes[name])


@dataclass(frozen=True)
class ReceivedLog:
    """One log record as it arrived."""

    trace_id: str
    span_id: str
    event_name: str
    service: str
    attributes: dict[str, Any]


@dataclass
class Receiver:
    """What the OTLP stand-in got. `answer` is the HTTP status it gives; `hang_s` how long it thinks before."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    logs: list[ReceivedLog] = field(default_factory=list)
    answer: int = 200
    hang_s: float = 0.0

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def of_trace(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]

    async def wait(self, count: int = 1) -> list[ReceivedSpan]:
        """The spans, once there are `count`; then no more may come for a moment."""
        await self.wait_at_least(count)
        await asyncio.sleep(0.15)
        assert len(self.spans) == count, [one.name for one in self.spans]
        return self.spans

    async def wait_at_least(self, count: int) -> list[ReceivedSpan]:
        """The spans, once there are `count` or no more come."""
        for _ in range(400):
            if len(self.spans) >= count:
                break
            await asyncio.sleep(0.01)
        return self.spans

    async def one(self) -> ReceivedSpan:
        return (await self.wait(1))[0]


@dataclass
class Model:
    """Requests that the model stand-in got: (path, headers in lower case, body)."""

    url: str
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    delay_s: float = 0.0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def body(self) -> bytes:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        return gzip.decompress(content) if self.headers.get("content-encoding") == "gzip" else content

    def reply(self, status: int, content: bytes, content_type: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(handler: type[_Handler], port: int = 0) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def otlp_receiver(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver("")

    class Handler(_Handler):
        def do_POST(self) -> None:
            content = self.body()
            time.sleep(receiver.hang_s)
            if receiver.answer == 200:
                keep = {"/v1/traces": _keep_spans, "/v1/logs": _keep_logs}[self.path]
                keep(receiver, content)
            self.reply(receiver.answer, b"", "application/x-protobuf")

    with serving(Handler, port) as url:
        receiver.url = url
        yield receiver


@contextmanager
def model_stand_in() -> Iterator[Model]:
    model = Model("")

    class Handler(_Handler):
        def do_GET(self) -> None:
            self.reply(200, b'{"object": "list", "data": [{"id": "policy", "object": "model"}]}')

        def do_POST(self) -> None:
            request = json.loads(self.body())
            model.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, request))
            time.sleep(model.delay_s)
            self.reply(200, json.dumps(_completion(request)).encode())

    with serving(Handler) as url:
        model.url = url
        yield model


@pytest.fixture(name="receiver")
def receiver_fixture() -> Iterator[Receiver]:
    """For a conftest to import: an OTLP receiver for each test."""
    with otlp_receiver() as running:
        yield running


@pytest.fixture(name="model")
def model_fixture() -> Iterator[Model]:
    """The same with a model."""
    with model_stand_in() as running:
        yield running


def _completion(request: dict[str, Any]) -> dict[str, Any]:
    last = request["messages"][-1]
    message: dict[str, Any] = {"role": "assistant", "content": f"The answer is {last['content']}."}
    if last["role"] == "user" and "calc " in last["content"]:
        arguments = json.dumps({"expression": last["content"].partition("calc ")[2]})
        call = {"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [one.string_value for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def _keep_spans(receiver: Receiver, content: bytes) -> None:
    for resource_spans in ExportTraceServiceRequest.FromString(content).resource_spans:
        service = _attributes(resource_spans.resource.attributes).get("service.name", "")
        for scope_spans in resource_spans.scope_spans:
            receiver.spans += [
                ReceivedSpan(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    service,
                    span.kind,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code,
                    span.status.message,
                    _attributes(span.attributes),
                )
                for span in scope_spans.spans
            ]


def _keep_logs(receiver: Receiver, content: bytes) -> None:
    for resource_logs in ExportLogsServiceRequest.FromString(content).resource_logs:
        service = _attributes(resource_logs.resource.attributes).get("service.name", "")
        for scope_logs in resource_logs.scope_logs:
            receiver.logs += [
                ReceivedLog(
                    record.trace_id.hex(),
                    record.span_id.hex(),
                    record.event_name,
                    service,
                    _attributes(record.attributes),
                )
                for record in scope_logs.log_records
            ]
