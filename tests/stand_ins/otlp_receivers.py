"""Both OTLP transports on real sockets, over a store that does what a test says."""

import contextlib
import secrets
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import grpc
from aiohttp import web
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.ingest import Rejected
from collector.otlp_grpc import OtlpGrpc
from collector.otlp_http import OtlpHttp
from collector.receiver import Receiver
from collector.signals import TRACES, Signal
from collector.tls import Tls

PROTOBUF = "application/x-protobuf"
EXPORT = {
    signal: f"/opentelemetry.proto.collector.{package}.v1.{service}/Export"
    for signal, package, service in (
        ("traces", "trace", "TraceService"),
        ("logs", "logs", "LogsService"),
        ("metrics", "metrics", "MetricsService"),
    )
}


@dataclass
class StoreDouble:
    """Fails with `error` where there is one; else keeps the body and answers `rejected`."""

    signal: Signal = TRACES
    error: Exception | None = None
    rejected: Rejected | None = None
    bodies: list[bytes] = field(default_factory=list)

    async def store(self, body: bytes) -> Rejected | None:
        """As the Ingest does."""
        if self.error is not None:
            raise self.error
        self.bodies.append(body)
        return self.rejected


@dataclass(frozen=True)
class Answer:
    """What one export got, over either transport. `code` is google.rpc.Code's number; 0: taken."""

    code: int
    status: Status
    body: bytes = b""
    http_status: int = 0
    retry_after: str | None = None

    @property
    def retry_s(self) -> float | None:
        """What RetryInfo says."""
        for detail in self.status.details:
            info = RetryInfo()
            if detail.Unpack(info):
                return float(info.retry_delay.ToNanoseconds() / 1e9)
        return None


@dataclass(frozen=True)
class Served:
    """Where they are."""

    receiver: Receiver
    http: str
    grpc: str
    grpc_server: OtlpGrpc
    http_runner: web.AppRunner

    async def export(self, transport: str, body: bytes, signal: str = "traces", token: str | None = None) -> Answer:
        """Send one request."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        if transport == "grpc":
            return await export_grpc(self.grpc, body, signal, headers)
        headers["content-type"] = PROTOBUF
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.http}/v1/{signal}", data=body, headers=headers) as reply,
        ):
            answer = await reply.read()
            if reply.status == 200:
                return Answer(0, Status(), answer, 200)
            status = Status.FromString(answer)
            return Answer(status.code, status, b"", reply.status, reply.headers.get("Retry-After"))


async def export_grpc(
    address: str, body: bytes, signal: str = "traces", headers: dict[str, str] | None = None
) -> Answer:
    """Send one request over a connection of its own."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            answer = await channel.unary_unary(EXPORT[signal])(body, metadata=tuple((headers or {}).items()))
        except grpc.aio.AioRpcError as error:
            details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
            return Answer(error.code().value[0], Status.FromString(details))
    return Answer(0, Status(), answer)


async def _delivered(within_s: float) -> bool:
    return within_s > 0


@contextlib.asynccontextmanager
async def served(*stores: StoreDouble, tls: Tls | None = None, **options: object) -> AsyncIterator[Served]:
    """Both transports over one Receiver with `options`."""
    receiver = Receiver(stores, **options)  # type: ignore[arg-type]
    otlp_grpc = OtlpGrpc(receiver)
    runner = web.AppRunner(OtlpHttp(receiver, _delivered).application("127.0.0.1"), auto_decompress=False)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as probe:
        await web.SockSite(runner, listener, ssl_context=None if tls is None else tls.context).start()
        port = probe.getsockname()[1]
        probe.close()
        await otlp_grpc.start("127.0.0.1", port, tls)
        try:
            http = f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}"
            yield Served(receiver, http, f"127.0.0.1:{port}", otlp_grpc, runner)
        finally:
            await otlp_grpc.stop(1)
            await runner.cleanup()


def spans(count: int = 1, size: int = 0) -> ExportTraceServiceRequest:
    """A request with so many spans of one new trace, each with an attribute of so many bytes."""
    request = ExportTraceServiceRequest()
    trace = secrets.token_bytes(16)
    scope = request.resource_spans.add().scope_spans.add()
    for _ in range(count):
        span = scope.spans.add(
            trace_id=trace, span_id=secrets.token_bytes(8), name="work", start_time_unix_nano=1_700_000_000_000_000_000
        )
        if size:
            span.attributes.add(key="text").value.string_value = "x" * size
    return request


def trace_of(request: ExportTraceServiceRequest) -> str:
    """Its trace id, in hex."""
    return str(request.resource_spans[0].scope_spans[0].spans[0].trace_id.hex())


def log_records(count: int, trace_id: bytes) -> ExportLogsServiceRequest:
    """A request with so many log records of a trace."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for _ in range(count):
        scope.log_records.add(time_unix_nano=1_700_000_000_000_000_000, trace_id=trace_id)
    return request


def gauge_points(count: int, name: str) -> ExportMetricsServiceRequest:
    """A request with so many data points of a gauge."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    for _ in range(count):
        metric.gauge.data_points.add(as_int=1, time_unix_nano=1_700_000_000_000_000_000)
    return request
