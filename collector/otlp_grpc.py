"""OTLP over gRPC: the Export methods of traces, logs and metrics, and the standard health service.

The bytes of a request go to the same Receiver as over HTTP; nothing here decodes them. Invariants: a message is read
only after its sender was let in, and `READS` at a time, the rest waits in HTTP/2's flow control; only one server has
the port; `stop` finishes what is in flight. gRPC itself expands gzip and deflate, within the size limit.
"""

import asyncio
import functools
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from collector.receiver import Held, Receiver, RefusedError
from collector.rpc_status import INVALID_ARGUMENT, LONGEST_MESSAGE, retry_info, status_message
from collector.tls import Tls
from tracegrad.errors import PortInUseError

READS = 4
"""At a time: gRPC does not say how large a message is before it has it, so each may be as large as any may be."""
STREAMS = 256
"""Requests at a time on one connection; further ones wait at the client."""
STATUS_DETAILS = "grpc-status-details-bin"
PYTHONS_RETRY_INFO = "google.rpc.retryinfo-bin"
"""Where OpenTelemetry's exporter for Python looks for it."""
HEALTH = "grpc.health.v1.Health"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
PING_MS = 10_000
"""Clients may ask so often whether the connection still lives."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class OtlpGrpc:
    """Made, started and stopped on one event loop."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._reading = asyncio.Semaphore(READS)
        self._stopping = asyncio.Event()
        self._services = {"", HEALTH, *(_service(store.signal.request) for store in receiver.stores.values())}
        self._server = grpc.aio.server(
            handlers=(_Methods(self._methods()),),
            options=(
                ("grpc.so_reuseport", 0),  # else a second collector would get every other request, silently
                ("grpc.max_receive_message_length", receiver.max_body_bytes),
                ("grpc.max_concurrent_streams", STREAMS),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
        )

    async def start(self, host: str, port: int, tls: Tls | None) -> None:
        """Serve on an address. Raises PortInUseError."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, tls.credentials)
        except RuntimeError as error:
            raise PortInUseError("the OTLP/gRPC receiver", host, port) from error
        await self._server.start()

    async def stop(self, finish_s: float) -> None:
        """Take nothing new; finish what is in flight, for at most `finish_s`."""
        self._stopping.set()
        await self._server.stop(finish_s)

    def _methods(self) -> dict[str, grpc.RpcMethodHandler]:
        found = {
            # As a stream of one message, so that it need not be read before its sender is let in.
            f"/{_service(store.signal.request)}/Export": grpc.stream_unary_rpc_method_handler(
                functools.partial(self._export, signal)
            )
            for signal, store in self._receiver.stores.items()
        }
        found[f"/{HEALTH}/Check"] = grpc.unary_unary_rpc_method_handler(self._check)
        found[f"/{HEALTH}/Watch"] = grpc.unary_stream_rpc_method_handler(self._watch)
        return found

    async def _export(self, signal: str, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        try:
            answer = await self._receiver.export(
                signal, "grpc", _authorization(context), functools.partial(self._read, messages)
            )
        except RefusedError as error:
            await context.abort(_CODES[error.code], error.message[:LONGEST_MESSAGE], _details(error))
        encoded: bytes = answer.SerializeToString()
        return encoded

    async def _read(self, messages: AsyncIterator[bytes], held: Held) -> bytes:
        async with self._reading:
            async for body in messages:
                held.hold(len(body))
                return body
        # What is too large, gRPC answers itself: RESOURCE_EXHAUSTED without RetryInfo. Here it looks like a sender that
        # went away.
        raise RefusedError("unread", INVALID_ARGUMENT, "the request has no message")

    async def _check(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        health = self._health(request)
        if Int32Value.FromString(health).value == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service here")
        return health

    async def _watch(self, request: bytes, _: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        yield self._health(request)
        await self._stopping.wait()
        yield self._health(request)

    def _health(self, request: bytes) -> bytes:
        """HealthCheckRequest {string service = 1} to HealthCheckResponse {ServingStatus status = 1}."""
        status = SERVING if not self._stopping.is_set() and self._receiver.problem is None else NOT_SERVING
        if StringValue.FromString(request).value not in self._services:
            status = SERVICE_UNKNOWN
        encoded: bytes = Int32Value(value=status).SerializeToString()
        return encoded


def _details(error: RefusedError) -> tuple[tuple[str, bytes], ...]:
    status = (STATUS_DETAILS, status_message(error.code, error.message, error.retry_after_s))
    if error.retry_after_s is None:
        return (status,)
    return (status, (PYTHONS_RETRY_INFO, retry_info(error.retry_after_s)))


class _Methods(grpc.GenericRpcHandler):
    """Finds a method by its path. Raw bytes in and out."""

    def __init__(self, methods: dict[str, grpc.RpcMethodHandler]) -> None:
        self._methods = methods

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler; None answers UNIMPLEMENTED."""
        return self._methods.get(details.method)


def _service(request: type[Message]) -> str:
    """The service whose Export takes such requests: each is alone in its file."""
    (name,) = (service.full_name for service in request.DESCRIPTOR.file.services_by_name.values())
    return str(name)


def _authorization(context: grpc.aio.ServicerContext) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return value if isinstance(value, str) else ""
    return ""
