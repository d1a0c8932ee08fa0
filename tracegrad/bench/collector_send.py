"""How the bench's load generator exports to a collector: requests that are encoded already, over HTTP or gRPC."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import cycle

from tracegrad.http_client import HttpClient
from tracegrad.otlp_request import TRACES, rejection, retry_after_s

Send = Callable[[bytes], Awaitable[None]]
"""Returns when the request is acknowledged. Raises Refused, Rejected or HttpError."""

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
KEEPALIVE_S = 60.0


class Refused(Exception):  # noqa: N818 - the collector works, and is busy
    """Not now: the request is to be sent again."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_after_s = after_s


class Rejected(Exception):  # noqa: N818 - as OTLP calls it
    """The request, or a part of it, will never be taken."""


@contextlib.asynccontextmanager
async def sender(port: int, *, grpc: bool, connections: int) -> AsyncIterator[Send]:
    """Sends to a collector on this machine while the block runs."""
    async with _grpc(port, connections) if grpc else _http(port) as send:
        yield send


@contextlib.asynccontextmanager
async def _http(port: int) -> AsyncIterator[Send]:
    client = HttpClient(KEEPALIVE_S)
    headers = {"content-type": "application/x-protobuf"}
    url = f"http://127.0.0.1:{port}"

    async def send(body: bytes) -> None:
        async with client.post(url, TRACES, headers, body) as reply:
            answer = await reply.read()
        if reply.status in {429, 502, 503, 504}:
            raise Refused(f"status {reply.status}: {answer[:300]!r}", retry_after_s(reply.headers.get("retry-after")))
        if reply.status != 200:
            raise Rejected(f"status {reply.status}: {answer[:300]!r}")
        _check(answer)

    try:
        yield send
    finally:
        client.close()


@contextlib.asynccontextmanager
async def _grpc(port: int, connections: int) -> AsyncIterator[Send]:
    import grpc

    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection each
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options))
            for _ in range(connections)
        ]
        calls = cycle([channel.unary_unary(EXPORT) for channel in channels])

        async def send(body: bytes) -> None:
            try:
                answer = await next(calls)(body)
            except grpc.aio.AioRpcError as error:
                if error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}:
                    raise Refused(f"{error.code().name}: {error.details()}") from error
                raise Rejected(f"{error.code().name}: {error.details()}") from error
            _check(answer)

        yield send


def _check(answer: bytes) -> None:
    rejected, why = rejection(TRACES, answer)
    if rejected:
        raise Rejected(f"{rejected} spans were rejected: {why}")
