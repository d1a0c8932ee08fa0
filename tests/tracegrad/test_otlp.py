"""The sender delivers everything that was queued, or counts what it could not."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tracegrad import otlp


class Receiver:
    """Records what arrives; answers with the next of `statuses`, then 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.spans: list[str] = []
        self.events: list[str] = []
        self.rejected = 0
        self.url = ""

    async def traces(self, request: web.Request) -> web.Response:
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            message = ExportTraceServiceRequest.FromString(await request.read())
            self.spans += [s.name for r in message.resource_spans for c in r.scope_spans for s in c.spans]
        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = self.rejected
        return web.Response(status=status, body=answer.SerializeToString())

    async def logs(self, request: web.Request) -> web.Response:
        message = ExportLogsServiceRequest.FromString(await request.read())
        self.events += [e.event_name for r in message.resource_logs for c in r.scope_logs for e in c.log_records]
        return web.Response()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    chosen = Receiver()
    app = web.Application()
    app.router.add_post("/v1/traces", chosen.traces)
    app.router.add_post("/v1/logs", chosen.logs)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    chosen.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield chosen
    await runner.cleanup()


def span(name: str, **values: otlp.Value) -> otlp.Span:
    return otlp.span(name, otlp.SpanContext.new(), start_ns=1, end_ns=2, values=values)


async def test_spans_and_events_arrive_in_order(receiver: Receiver) -> None:
    async with otlp.OtlpSender(receiver.url, "test", delay_s=0) as sender:
        for index in range(10):
            assert sender.put(span(f"s{index}"))
        assert sender.put(otlp.event("judged", otlp.SpanContext.new(), {}))
        assert await sender.flush(5)
    assert receiver.spans == [f"s{index}" for index in range(10)]
    assert receiver.events == ["judged"]
    assert (sender.counters.sent, sender.queue_bytes) == (11, 0)


async def test_a_busy_collector_is_retried_until_it_takes_them(receiver: Receiver) -> None:
    receiver.statuses = [503, 429]
    async with otlp.OtlpSender(receiver.url, "test", delay_s=0) as sender:
        sender.put(span("late"))
    assert receiver.spans == ["late"]
    assert sender.counters.retries == 2


async def test_what_the_collector_refuses_is_counted_and_does_not_block_the_rest(receiver: Receiver) -> None:
    receiver.statuses = [400]
    async with otlp.OtlpSender(receiver.url, "test", delay_s=0) as sender:
        sender.put(span("refused"))
        await sender.flush(5)
        sender.put(span("taken"))
    assert receiver.spans == ["taken"]
    assert sender.counters.dropped_refused == 1


async def test_a_batch_is_split_until_only_what_is_malformed_is_lost(receiver: Receiver) -> None:
    receiver.statuses = [400, 200, 400, 400]  # all four, the first half, the second half, its first record
    async with otlp.OtlpSender(receiver.url, "test", delay_s=0.05) as sender:
        for index in range(4):
            sender.put(span(f"s{index}"))
    assert receiver.spans == ["s0", "s1", "s3"]
    assert (sender.counters.sent, sender.counters.dropped_refused) == (3, 1)


async def test_a_partial_success_counts_what_was_rejected(receiver: Receiver) -> None:
    receiver.rejected = 1
    async with otlp.OtlpSender(receiver.url, "test", delay_s=0.05) as sender:
        sender.put(span("taken"))
        sender.put(span("rejected"))
    assert (sender.counters.sent, sender.counters.dropped_refused) == (1, 1)


async def test_the_queue_is_bounded_and_losses_are_counted() -> None:
    async with otlp.OtlpSender("http://127.0.0.1:1", "test", max_queue_bytes=200, close_timeout_s=0.1) as sender:
        assert sender.put(span("kept"))
        assert not sender.put(span("too much", text="x" * 300))
        await asyncio.sleep(0)
    assert sender.counters.dropped_queue_full == 2, "one did not fit, one was left when the sender closed"


def test_traceparent_round_trip_and_nonsense() -> None:
    context = otlp.SpanContext.new()
    assert otlp.parse_traceparent(context.traceparent) == context
    zero_trace = f"00-{'0' * 32}-{'1' * 16}-01"
    for nonsense in (
        None,
        "",
        "00-xyz",
        zero_trace,
        "00-" + "g" * 32 + "-" + "1" * 16 + "-01",
        "ff" + context.traceparent[2:],
    ):
        assert otlp.parse_traceparent(nonsense) is None


def test_attributes_keep_their_types() -> None:
    pairs = {
        pair.key: pair.value for pair in otlp.attributes({"b": True, "i": 7, "f": 0.5, "s": "x", "l": ["a"], "n": None})
    }
    assert pairs["b"].bool_value is True
    assert (pairs["i"].int_value, pairs["f"].double_value, pairs["s"].string_value) == (7, 0.5, "x")
    assert [item.string_value for item in pairs["l"].array_value.values] == ["a"]
    assert "n" not in pairs
