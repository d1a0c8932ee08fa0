"""What both OTLP transports say of the same things: refusals, retries, limits, partial success, the end."""

import asyncio
import contextlib
from typing import Any

import aiohttp
import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from otlp_receivers import EXPORT, PROTOBUF, StoreDouble, gauge_points, log_records, served, spans

from collector import metrics, receiver
from collector.ingest import Rejected, UnavailableError
from collector.nested import MalformedError
from collector.otlp_grpc import OtlpGrpc
from collector.otlp_records import count_records
from collector.signals import LOGS, METRICS, TRACES, Signal
from tracegrad.errors import PortInUseError

TRANSPORTS = ["http", "grpc"]
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE, UNAUTHENTICATED = 3, 8, 14, 16


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        (MalformedError("it is no request"), "malformed", (INVALID_ARGUMENT, 400, None, None)),
        (UnavailableError("there is no room", 2.5, full=True), "full", (RESOURCE_EXHAUSTED, 429, "3", 2.5)),
        (UnavailableError("not at the moment", 0.25), "unavailable", (UNAVAILABLE, 503, "1", 0.25)),
        (ZeroDivisionError("a fault of ours"), "fault", (UNAVAILABLE, 503, "1", 1.0)),
    ],
)
async def test_what_is_not_stored_is_refused_as_the_specification_says(
    transport: str, error: Exception, reason: str, said: tuple[int, int, str | None, float | None]
) -> None:
    code, http_status, retry_after, retry_s = said
    requests = metrics.REQUESTS.value("traces", transport, reason)
    records = metrics.RECORDS.value("traces", transport, reason)
    async with served(StoreDouble(error=error)) as server:
        answer = await server.export(transport, spans(3).SerializeToString())
    assert (answer.code, answer.status.code) == (code, code)
    assert "fault of ours" not in answer.status.message
    if transport == "http":
        assert (answer.http_status, answer.retry_after) == (http_status, retry_after)
    else:
        assert answer.retry_s == retry_s
    assert metrics.REQUESTS.value("traces", transport, reason) == requests + 1
    assert metrics.RECORDS.value("traces", transport, reason) == records + 3


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("signal", "body", "answer", "field"),
    [
        (TRACES, spans(5).SerializeToString(), ExportTraceServiceResponse, "rejected_spans"),
        (LOGS, log_records(5, b"\x01" * 16).SerializeToString(), ExportLogsServiceResponse, "rejected_log_records"),
        (METRICS, gauge_points(5, "m").SerializeToString(), ExportMetricsServiceResponse, "rejected_data_points"),
    ],
)
async def test_partial_success(transport: str, signal: Signal, body: bytes, answer: Any, field: str) -> None:
    counted = [metrics.RECORDS.value(signal.name, transport, outcome) for outcome in ("stored", "rejected")]
    store = StoreDouble(signal, rejected=Rejected(2, "two have no id"))
    async with served(store) as server:
        partial = answer.FromString((await server.export(transport, body, signal.name)).body).partial_success
    assert (getattr(partial, field), partial.error_message) == (2, "two have no id")
    assert store.bodies == [body]
    after = [metrics.RECORDS.value(signal.name, transport, outcome) for outcome in ("stored", "rejected")]
    assert after == [counted[0] + 3, counted[1] + 2]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_request_may_be_as_large_as_the_setting_says_and_no_larger(transport: str) -> None:
    fits = spans(1, 900).SerializeToString()
    store = StoreDouble()
    async with served(store, max_body_bytes=len(fits)) as server:
        assert (await server.export(transport, fits)).code == 0
        answer = await server.export(transport, spans(1, 901).SerializeToString())
    assert store.bodies == [fits]
    if transport == "http":
        assert (answer.http_status, answer.code, answer.retry_after) == (413, INVALID_ARGUMENT, None)
        assert "max_body_bytes" in answer.status.message
    else:  # gRPC's own answer: without RetryInfo it is not to be sent again
        assert (answer.code, answer.retry_s) == (RESOURCE_EXHAUSTED, None)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_grpc_expands_what_is_compressed_within_the_limit(compression: grpc.Compression) -> None:
    fits, bomb = spans(1, 90_000).SerializeToString(), bytes(50 << 20)
    store = StoreDouble()
    async with served(store, max_body_bytes=100_000) as server, grpc.aio.insecure_channel(server.grpc) as channel:
        export = channel.unary_unary(EXPORT["traces"])
        await export(fits, compression=compression)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await export(bomb, compression=compression)
    assert store.bodies == [fits]
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_chunked_body_is_counted_as_it_comes() -> None:
    async def pieces(body: bytes) -> Any:
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    body = spans(1, 5000).SerializeToString()
    store = StoreDouble()
    async with served(store, max_body_bytes=6000) as server, aiohttp.ClientSession() as session:
        for sent, status in ((body, 200), (spans(1, 6000).SerializeToString(), 413)):
            headers = {"content-type": PROTOBUF}
            async with session.post(f"{server.http}/v1/traces", data=pieces(sent), headers=headers) as reply:
                assert reply.status == status
    assert store.bodies == [body]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_all_requests_together_hold_no_more_than_their_bound(transport: str) -> None:
    gate = asyncio.Event()

    class Slow(StoreDouble):
        async def store(self, body: bytes) -> Rejected | None:
            await gate.wait()
            return await super().store(body)

    store = Slow()
    body = spans(1, 1000).SerializeToString()
    async with served(store, max_body_bytes=2000, held_bytes=4000) as server:
        waiting = [asyncio.create_task(server.export(transport, body)) for _ in range(3)]
        while metrics_held() < 3 * len(body):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
        busy = await server.export(transport, body)
        gate.set()
        assert [answer.code for answer in await asyncio.gather(*waiting)] == [0, 0, 0]
        assert (await server.export(transport, body)).code == 0
    assert busy.code == UNAVAILABLE
    assert busy.retry_after == "1" if transport == "http" else busy.retry_s == 1.0
    assert metrics_held() == 0


def metrics_held() -> float:
    ((_, _, held),) = metrics.HELD_BYTES.samples()
    return held


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_sender_that_stalls_does_not_keep_its_place(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "READ_S", 0.2)
    slow = metrics.REQUESTS.value("traces", transport, "slow")
    async with served(StoreDouble()) as server:
        if transport == "grpc":
            async with grpc.aio.insecure_channel(server.grpc) as channel:
                call = channel.stream_unary(EXPORT["traces"])()
                assert await call.code() == grpc.StatusCode.UNAVAILABLE
        else:
            port = int(server.http.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = (
                f"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 9\r\n\r\n"
            )
            writer.write(head.encode() + b"abc")
            assert (await reader.readline()).split()[1] == b"503"
            writer.close()
    assert metrics.REQUESTS.value("traces", transport, "slow") == slow + 1
    assert metrics_held() == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_sender_that_goes_away_is_counted(transport: str) -> None:
    reason = {"http": "gone", "grpc": "unread"}[transport]
    gone = metrics.REQUESTS.value("traces", transport, reason)
    async with served(StoreDouble()) as server:
        if transport == "grpc":
            async with grpc.aio.insecure_channel(server.grpc) as channel:
                call = channel.stream_unary(EXPORT["traces"])()
                await call.wait_for_connection()
                await until_in_flight(1)
                call.cancel()
        else:
            port = int(server.http.rpartition(":")[2])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = (
                f"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 9\r\n\r\n"
            )
            writer.write(head.encode() + b"abc")
            await until_in_flight(1)
            writer.close()
        await until_in_flight(0)
    assert metrics.REQUESTS.value("traces", transport, reason) == gone + 1


async def until_in_flight(count: int) -> None:
    while [sample[2] for sample in metrics.IN_FLIGHT.samples()] != [count]:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("token", "code"), [(None, UNAUTHENTICATED), ("wrong", UNAUTHENTICATED), ("right", 0)])
async def test_a_token_is_asked_for_before_anything_is_read(transport: str, token: str | None, code: int) -> None:
    store = StoreDouble()
    async with served(store, token="right") as server:
        answer = await server.export(transport, spans().SerializeToString(), token=token)
    assert (answer.code, len(store.bodies)) == (code, int(code == 0))
    if code:
        assert answer.retry_s is None
        assert "OTEL_EXPORTER_OTLP_HEADERS" in answer.status.message
        assert "right" not in answer.status.message
        assert transport == "grpc" or answer.http_status == 401


@pytest.mark.parametrize("header", ["right", "Basic right", "Bearerright", "Bearer  right x", "Bearer caf\xe9", ""])
async def test_only_a_bearer_token_counts(header: str) -> None:
    async with served(StoreDouble(), token="right") as server, aiohttp.ClientSession() as session:
        headers = {"content-type": PROTOBUF, "authorization": header}
        async with session.post(f"{server.http}/v1/traces", data=b"", headers=headers) as reply:
            assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with session.post(
            f"{server.http}/v1/traces", data=b"", headers=headers | {"authorization": "bearer right"}
        ) as reply:
            assert reply.status == 200


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_is_in_flight_at_the_end_is_finished(transport: str) -> None:
    gate = asyncio.Event()

    class Slow(StoreDouble):
        async def store(self, body: bytes) -> Rejected | None:
            await gate.wait()
            return await super().store(body)

    store = Slow()
    async with served(store) as server:
        request = asyncio.create_task(server.export(transport, spans().SerializeToString()))
        await until_in_flight(1)
        stopping = asyncio.gather(server.grpc_server.stop(20), server.http_runner.cleanup())
        await asyncio.sleep(0.1)
        with pytest.raises((OSError, grpc.RpcError)) as refused:
            await refuse_new(server, transport)
        gate.set()
        assert (await request).code == 0
        await stopping
    assert len(store.bodies) == 1
    assert refused.value is not None


async def refuse_new(server: Any, transport: str) -> None:
    answer = await server.export(transport, spans().SerializeToString())
    if transport == "grpc" and answer.code == UNAVAILABLE:
        raise grpc.RpcError


async def test_two_servers_never_share_a_port() -> None:
    async with served(StoreDouble()) as server:
        second = OtlpGrpc(receiver.Receiver([StoreDouble()]))
        port = int(server.grpc.rpartition(":")[2])
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is in use"):
            await second.start("127.0.0.1", port, None)
        await second.stop(0)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
        b"\xff" * 70_000,
    ],
)
async def test_nonsense_on_the_grpc_port_ends_its_connection_and_nothing_else(nonsense: bytes) -> None:
    async with served(StoreDouble()) as server:
        host, _, port = server.grpc.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(OSError):  # it may be closed before all is written
            writer.write(nonsense)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert (await server.export("grpc", spans().SerializeToString())).code == 0


async def test_grpc_health() -> None:
    store = StoreDouble()
    async with (
        served(store) as server,
        grpc.aio.insecure_channel(server.grpc) as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        name = b"opentelemetry.proto.collector.trace.v1.TraceService"
        assert await check(b"\x0a" + bytes([len(name)]) + name) == b"\x08\x01"
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await check(b"\x0a\x01x")
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as no_method:
            await channel.unary_unary("/opentelemetry.proto.collector.profiles.v1.ProfilesService/Export")(b"")
        assert no_method.value.code() == grpc.StatusCode.UNIMPLEMENTED
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert await watch.read() == b"\x08\x01"
        store.error = UnavailableError("the spool is full", 60, full=True)
        await server.export("grpc", b"")
        assert await check(b"") == b"\x08\x02"
        store.error = None
        await server.export("grpc", b"")
        assert await check(b"") == b"\x08\x01"
        stopping = asyncio.create_task(server.grpc_server.stop(5))
        assert await watch.read() == b"\x08\x02"
        await stopping


async def test_probes_and_metrics_over_http() -> None:
    warnings: list[str] = []
    store = StoreDouble()
    async with (
        served(store, token="right", warning=lambda: warnings[0] if warnings else None) as server,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"{server.http}/healthz") as reply:
            assert await reply.json() == {"status": "ok"}
        async with session.get(f"{server.http}/readyz") as reply:
            assert (reply.status, await reply.json()) == (200, {"status": "ready"})
        warnings.append("the store is away")
        async with session.get(f"{server.http}/readyz") as reply:
            assert (reply.status, await reply.json()) == (200, {"status": "ready", "warning": "the store is away"})
        store.error = UnavailableError("the spool is full", 60, full=True)
        await server.export("http", b"", token="right")
        async with session.get(f"{server.http}/readyz") as reply:
            assert (reply.status, await reply.json()) == (503, {"status": "not ready", "reason": "the spool is full"})
        server.receiver.stopping = True
        async with session.get(f"{server.http}/readyz") as reply:
            assert (await reply.json())["reason"] == "it is stopping"
        async with session.get(f"{server.http}/metrics") as reply:
            assert reply.status == 401
        async with session.get(f"{server.http}/metrics", headers={"authorization": "Bearer right"}) as reply:
            assert (reply.status, reply.content_type) == (200, "text/plain")
        async with session.post(
            f"{server.http}/v1/traces/v1/traces", data=b"", headers={"content-type": PROTOBUF}
        ) as reply:
            assert reply.status == 404
            assert b"/v1/traces" in await reply.read()


@pytest.mark.parametrize(
    ("signal", "body", "count"),
    [
        ("traces", b"", 0),
        ("traces", spans(7).SerializeToString() + spans(2).SerializeToString(), 9),
        ("logs", log_records(300, b"\x01" * 16).SerializeToString(), 300),
        ("metrics", gauge_points(4, "m").SerializeToString(), 4),
    ],
)
def test_records_are_counted_without_decoding(signal: str, body: bytes, count: int) -> None:
    assert count_records(signal, body, 1 << 20) == count
    assert count == 0 or count_records(signal, body, 0) > 0


@pytest.mark.parametrize("body", [b"\x0a", b"\x0a\x05", b"\x0b\x0c", b"\xff" * 12, spans().SerializeToString()[:-1]])
def test_what_cannot_be_counted_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError, match="OTLP traces"):
        count_records("traces", body, 1 << 20)


async def test_a_body_that_breaks_http_is_a_bad_request() -> None:
    async with served(StoreDouble()) as server:
        port = int(server.http.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {PROTOBUF}\r\n"
        writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzzz\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
