"""OTLP over HTTP: `POST /v1/traces` and `/v1/logs`, protobuf or JSON. 200 means: on disk.

Errors are google.rpc.Status messages in the encoding of the request. 400 and 413 will not get better by sending again;
429 and 503 will. Metrics are not stored, which their answer says, so that exporters need not be told to stop.
"""

import asyncio
import logging
from dataclasses import dataclass

import orjson
from aiohttp import web
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from collector.compression import EncodingError, TooLargeError, UnknownEncodingError, decompress
from collector.guard import same_site
from collector.ingest import WAITING_BYTES, Ingest, UnavailableError
from collector.nested import MalformedError
from collector.otlp_json import to_protobuf

log = logging.getLogger(__name__)

PROTOBUF, JSON = "application/x-protobuf", "application/json"
ENCODINGS = ("", "identity", "gzip", "deflate", "zstd")
MAX_BODY_BYTES = 64 << 20
THREAD_BYTES = 1 << 18
"""Bodies larger than this are decompressed in a thread: the event loop has others to serve."""

# google.rpc.Code
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE = 3, 8, 14


@dataclass(frozen=True)
class _RefusedError(Exception):
    http_status: int
    code: int
    message: str


class OtlpHttp:
    """The routes. What is being read and what waits to be stored share one bound, `WAITING_BYTES` for each signal."""

    def __init__(self, traces: Ingest, logs: Ingest) -> None:
        self._ingests = {"/v1/traces": traces, "/v1/logs": logs}
        self._reading_bytes = 0

    def application(self, host: str) -> web.Application:
        """The application that serves them on `host`."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[same_site(host)])
        app.router.add_get("/healthz", self._health)
        app.router.add_post("/v1/metrics", self._metrics)
        for path in self._ingests:
            app.router.add_post(path, self._export)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _export(self, request: web.Request) -> web.Response:
        ingest = self._ingests[request.path]
        try:
            body = await self._body(request)
            if request.content_type == JSON:
                body = await asyncio.to_thread(to_protobuf, ingest.signal, body)
            await ingest.store(body)
        except MalformedError as error:
            return _refusal(request, _RefusedError(400, INVALID_ARGUMENT, str(error)))
        except UnavailableError as error:
            return _refusal(request, _RefusedError(503, UNAVAILABLE, str(error)))
        except _RefusedError as error:
            return _refusal(request, error)
        return _answer(request, ingest.signal.response())

    async def _metrics(self, request: web.Request) -> web.Response:
        metrics = ExportMetricsServiceRequest()
        try:
            body = await self._body(request)
            if request.content_type != JSON:
                metrics.ParseFromString(body)
        except DecodeError as error:
            return _refusal(
                request, _RefusedError(400, INVALID_ARGUMENT, f"the body is not an OTLP metrics request: {error}")
            )
        except _RefusedError as error:
            return _refusal(request, error)
        answer = ExportMetricsServiceResponse()
        answer.partial_success.error_message = "metrics are not stored here: set OTEL_METRICS_EXPORTER=none"
        answer.partial_success.rejected_data_points = _count_points(metrics)
        return _answer(request, answer)

    async def _body(self, request: web.Request) -> bytes:
        """The plain body. Raises _RefusedError."""
        if request.content_type not in (PROTOBUF, JSON):
            raise _RefusedError(
                415, INVALID_ARGUMENT, f"content type {request.content_type} is not taken: send {PROTOBUF} or {JSON}"
            )
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ENCODINGS:
            raise _RefusedError(415, INVALID_ARGUMENT, f"content encoding {encoding} is not taken: send gzip or none")
        too_large = _RefusedError(
            413, INVALID_ARGUMENT, f"the body is larger than {MAX_BODY_BYTES} bytes: send less at once"
        )
        size = request.content_length if request.content_length is not None else MAX_BODY_BYTES
        if size > MAX_BODY_BYTES:
            raise too_large
        if self._reading_bytes + size > WAITING_BYTES:
            raise _RefusedError(
                503, RESOURCE_EXHAUSTED, "the collector is reading too much at the moment: send it again"
            )
        self._reading_bytes += size
        try:
            raw = await request.read()
            if encoding in ("", "identity"):
                return raw
            if len(raw) < THREAD_BYTES:
                return decompress(encoding, raw, MAX_BODY_BYTES)
            return await asyncio.to_thread(decompress, encoding, raw, MAX_BODY_BYTES)
        except (TooLargeError, web.HTTPRequestEntityTooLarge):
            raise too_large from None
        except (EncodingError, UnknownEncodingError) as error:
            raise _RefusedError(400, INVALID_ARGUMENT, str(error)) from error
        finally:
            self._reading_bytes -= size


def _answer(request: web.Request, message: Message) -> web.Response:
    if request.content_type == JSON:
        return web.Response(body=orjson.dumps(MessageToDict(message)), content_type=JSON)
    return web.Response(body=message.SerializeToString(), content_type=PROTOBUF)


def _refusal(request: web.Request, error: _RefusedError) -> web.Response:
    log.warning("otlp refused path=%s status=%d reason=%s", request.path, error.http_status, error.message)
    headers = {"Retry-After": "1"} if error.http_status == 503 else {}
    if error.http_status == 415:
        headers["Accept-Encoding"] = "gzip, deflate, zstd, identity"
    if request.content_type == JSON:
        body = orjson.dumps({"code": error.code, "message": error.message})
        return web.Response(status=error.http_status, body=body, content_type=JSON, headers=headers)
    return web.Response(
        status=error.http_status, body=status_message(error.code, error.message), content_type=PROTOBUF, headers=headers
    )


def status_message(code: int, message: str) -> bytes:
    """A google.rpc.Status (int32 code = 1; string message = 2), without depending on its package for two fields."""
    text = message.encode()[:1000]
    length = bytes([len(text) & 0x7F | 0x80, len(text) >> 7]) if len(text) > 0x7F else bytes([len(text)])
    return b"\x08" + bytes([code]) + b"\x12" + length + text


def _count_points(request: ExportMetricsServiceRequest) -> int:
    return sum(
        len(getattr(metric, kind).data_points)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if (kind := metric.WhichOneof("data")) is not None
    )
