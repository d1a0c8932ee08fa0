"""OTLP for our own processes: build spans and log records, send them until the collector has acknowledged them.

Invariants of `OtlpSender`: the queue is bounded in bytes; nothing leaves it before a 200 from the collector, except
what the collector refuses; whatever is dropped is counted in `counters` and logged once per burst.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tracegrad.otlp_access import OtlpAccess
from tracegrad.otlp_client import Delivered, OtlpClient
from tracegrad.otlp_request import LOGS, TRACES

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

log = logging.getLogger(__name__)

Value = str | bool | int | float | Sequence[str] | None
"""What an attribute may hold; None leaves the attribute out."""


@dataclass(frozen=True)
class SpanContext:
    """Where a span stands: 16 and 8 raw bytes, as in the W3C traceparent."""

    trace_id: bytes
    span_id: bytes

    @staticmethod
    def new(trace_id: bytes | None = None) -> "SpanContext":
        """A fresh span id, in the given trace or a fresh one."""
        return SpanContext(trace_id or secrets.token_bytes(16), secrets.token_bytes(8))

    @property
    def traceparent(self) -> str:
        """The W3C header value, sampled."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-01"


def parse_traceparent(value: str | None) -> SpanContext | None:
    """The caller's context from a `traceparent` header; None when absent or not valid."""
    parts = (value or "").strip().split("-")
    if len(parts) < 4 or (len(parts[0]), len(parts[1]), len(parts[2])) != (2, 32, 16) or parts[0] == "ff":
        return None
    try:
        trace_id, span_id = bytes.fromhex(parts[1]), bytes.fromhex(parts[2])
    except ValueError:
        return None
    return SpanContext(trace_id, span_id) if any(trace_id) and any(span_id) else None


def attributes(values: Mapping[str, Value]) -> list[KeyValue]:
    """Key-value pairs in OTLP's form; None is left out."""
    pairs = Resource().attributes
    _add_attributes(pairs, values)
    return list(pairs)


def _add_attributes(pairs: "RepeatedCompositeFieldContainer[KeyValue]", values: Mapping[str, Value]) -> None:
    # Filling in place takes a third of the time of building messages and copying them.
    for key, value in values.items():
        if value is None:
            continue
        target = pairs.add(key=key).value
        match value:
            case str():
                target.string_value = value
            case bool():
                target.bool_value = value
            case int():
                target.int_value = value
            case float():
                target.double_value = value
            case _:
                target.array_value.SetInParent()
                for item in value:
                    target.array_value.values.add(string_value=item)


def span(
    name: str,
    context: SpanContext,
    *,
    parent_span_id: bytes = b"",
    kind: Span.SpanKind.ValueType = Span.SPAN_KIND_INTERNAL,
    start_ns: int,
    end_ns: int,
    values: Mapping[str, Value],
    error: str | None = None,
) -> Span:
    """One finished span; with `error`, its status is ERROR and `error` the message."""
    finished = Span(
        trace_id=context.trace_id,
        span_id=context.span_id,
        parent_span_id=parent_span_id,
        name=name,
        kind=kind,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=end_ns,
        status=Status(code=Status.STATUS_CODE_ERROR, message=error) if error is not None else Status(),
        flags=1,
    )
    _add_attributes(finished.attributes, values)
    return finished


def event(name: str, context: SpanContext, values: Mapping[str, Value]) -> LogRecord:
    """One OpenTelemetry event (a log record with an event name) on the span of `context`, now."""
    now = time.time_ns()
    return LogRecord(
        time_unix_nano=now,
        observed_time_unix_nano=now,
        event_name=name,
        trace_id=context.trace_id,
        span_id=context.span_id,
        attributes=attributes(values),
    )


@dataclass
class Counters(Delivered):
    """What became of the records of one sender. `dropped_*` are losses."""

    queued: int = 0
    dropped_queue_full: int = 0


class OtlpSender:
    """Sends spans and log records to one collector over OTLP/HTTP, in order, in batches.

    `async with OtlpSender(endpoint, service) as sender`: leaving the block waits until all is acknowledged, for at
    most `close_timeout_s`, then counts what is left as dropped.
    """

    def __init__(
        self,
        endpoint: str,
        service: str,
        *,
        delay_s: float = 0.1,
        max_queue_bytes: int = 256 << 20,
        max_batch_bytes: int = 4 << 20,
        close_timeout_s: float = 10.0,
        access: OtlpAccess | None = None,
    ) -> None:
        self.counters = Counters()
        self.queue_bytes = 0
        self._client = OtlpClient(endpoint, service, self.counters, access)
        self._delay_s = delay_s
        self._max_queue_bytes = max_queue_bytes
        self._max_batch_bytes = max_batch_bytes
        self._close_timeout_s = close_timeout_s
        self._queue: deque[tuple[str, bytes]] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "OtlpSender":
        await self._client.__aenter__()
        self._task = asyncio.create_task(self._run(), name="otlp-sender")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.flush(self._close_timeout_s)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.__aexit__()
        if self._queue:
            self.counters.dropped_queue_full += len(self._queue)
            log.error("otlp records lost at shutdown count=%d", len(self._queue))

    def put(self, record: Span | LogRecord) -> bool:
        """Queue one record, never blocking. False, and counted as a loss, when the queue is full."""
        encoded = record.SerializeToString()
        if self.queue_bytes + len(encoded) > self._max_queue_bytes:
            self.counters.dropped_queue_full += 1
            if self.counters.dropped_queue_full.bit_count() == 1:
                log.error("otlp queue full, records dropped total=%d", self.counters.dropped_queue_full)
            return False
        self._queue.append((TRACES if isinstance(record, Span) else LOGS, encoded))
        self.queue_bytes += len(encoded)
        self.counters.queued += 1
        self._idle.clear()
        self._wake.set()
        return True

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued so far is acknowledged. False when `timeout_s` passed first."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._delay_s)
            while self._queue:
                path, records = self._next_batch()
                await self._client.deliver(path, records)
                for _ in records:
                    self.queue_bytes -= len(self._queue.popleft()[1])
            self._wake.clear()
            self._idle.set()

    def _next_batch(self) -> tuple[str, list[bytes]]:
        """The head of the queue: records of one kind, up to the batch size. They stay queued until acknowledged."""
        kind, total = self._queue[0][0], 0
        records: list[bytes] = []
        for path, record in self._queue:
            if path != kind or (records and total + len(record) > self._max_batch_bytes):
                break
            records.append(record)
            total += len(record)
        return kind, records
