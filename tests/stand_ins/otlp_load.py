"""Several clients that send spans and log records as fast as they are acknowledged, until the collector dies.

What they sent is known exactly: every request has a trace id of its own, and its records have the span ids 1, 2, ...
"""

import http.client
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TABLES = {"traces": "otel_traces", "logs": "otel_logs"}
_PLACEHOLDER = b"\xa7" * 16
_METHODS = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
START_NS = 1_790_000_000_000_000_000
DAY_NS, DAYS = 86_400_000_000_000, 12
"""Each day is a partition, and the store takes partition after partition: a kill finds batches that are half stored."""
SIZES = ((1, 50), (1, 20_000), (7, 300), (40, 6000), (700, 100), (3000, 10))
"""Records of a request, and bytes of an attribute of each."""


@dataclass
class Sent:
    """A request. `acknowledged` is False also when nobody knows."""

    signal: str
    count: int
    acknowledged: bool = False


@dataclass
class Ledger:
    """All requests of all clients, by trace id as the tables have it."""

    sent: dict[str, Sent] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def new(self, signal: str, count: int) -> tuple[bytes, Sent]:
        """A trace id, and what is sent under it."""
        trace_id = f"{next(self._numbers):016d}".encode()
        sent = self.sent[trace_id.hex()] = Sent(signal, count)
        return trace_id, sent

    @property
    def acknowledged(self) -> int:
        """Requests."""
        return sum(sent.acknowledged for sent in list(self.sent.values()))

    def check(self, sql: Callable[[str], str], lost: int = 0) -> None:
        """The store holds every acknowledged record, nothing twice, and nothing that was not sent.

        `lost`: so many requests that were acknowledged may be missing wholly.
        """
        for signal, table in TABLES.items():
            answer = sql(f"SELECT TraceId, count(), uniqExact(SpanId), max(SpanId) FROM {table} GROUP BY TraceId")
            found = {row[0]: row[1:] for row in (line.split("\t") for line in answer.splitlines())}
            for trace_id, sent in self.sent.items():
                if sent.signal != signal:
                    continue
                count, distinct, highest = found.pop(trace_id, ("0", "0", "0"))
                assert count == distinct, f"doubled: {trace_id} {sent}: {count} rows, {distinct} spans"
                assert int(highest, 16) <= sent.count
                if sent.acknowledged and int(count) == 0 and lost:
                    lost -= 1
                elif sent.acknowledged:
                    assert int(count) == sent.count, f"lost: {trace_id} {sent}: {count} rows"
            assert not found


@dataclass(frozen=True)
class Template:
    """A request without its trace id."""

    signal: str
    count: int
    body: bytes

    def filled(self, trace_id: bytes) -> bytes:
        """The request with it."""
        return self.body.replace(_PLACEHOLDER, trace_id)


def templates(signal: str, sizes: tuple[tuple[int, int], ...] = SIZES) -> list[Template]:
    """One of each size."""
    return [Template(signal, count, _request(signal, count, size).SerializeToString()) for count, size in sizes]


def _request(signal: str, count: int, size: int) -> Message:
    request: Any = ExportTraceServiceRequest() if signal == "traces" else ExportLogsServiceRequest()
    resource = (request.resource_spans if signal == "traces" else request.resource_logs).add()
    entry = resource.resource.attributes.add(key="service.name")
    entry.value.string_value = "load"
    scope = resource.scope_spans.add() if signal == "traces" else resource.scope_logs.add()
    for number in range(1, count + 1):
        if signal == "traces":
            record = scope.spans.add(name=f"step {number % 7}", start_time_unix_nano=START_NS - number % DAYS * DAY_NS)
        else:
            record = scope.log_records.add(time_unix_nano=START_NS - number % DAYS * DAY_NS)
        record.trace_id = _PLACEHOLDER
        record.span_id = number.to_bytes(8, "big")
        attribute = record.attributes.add(key="text")
        attribute.value.string_value = random.Random(number).randbytes(size // 2).hex()
    return request


class _Http:
    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=60)

    def send(self, signal: str, body: bytes) -> str:
        """`200`, another status, or `lost`."""
        try:
            self._connection.request("POST", f"/v1/{signal}", body, {"Content-Type": "application/x-protobuf"})
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return "lost"
        return str(answer.status)

    def close(self) -> None:
        self._connection.close()


class _Grpc:
    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])

    def send(self, signal: str, body: bytes) -> str:
        """`200`, or the name of a gRPC status."""
        try:
            self._channel.unary_unary(_METHODS[signal])(body, timeout=60)
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
        return "200"

    def close(self) -> None:
        self._channel.close()


class Load:
    """Clients of one collector: for traces and logs, over HTTP and gRPC, until `stop`.

    `answers` counts what came other than an acknowledgement.
    """

    def __init__(self, ledger: Ledger, requests: list[Template], otlp_http: str, otlp_grpc: str) -> None:
        self.answers: Counter[str] = Counter()
        self._ledger = ledger
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(kind(to), [one for one in requests if one.signal == signal]))
            for signal in TABLES
            for kind, to in ((_Http, otlp_http.removeprefix("http://")), (_Grpc, otlp_grpc))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what is under way; the collector may be dead already."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, client: _Http | _Grpc, requests: list[Template]) -> None:
        chance = random.Random(threading.get_ident())
        while not self._stopped.is_set():
            template = chance.choice(requests)
            trace_id, sent = self._ledger.new(template.signal, template.count)
            answer = client.send(template.signal, template.filled(trace_id))
            sent.acknowledged = answer == "200"
            if not sent.acknowledged:
                self.answers[answer] += 1
                self._stopped.wait(0.05)
        client.close()
