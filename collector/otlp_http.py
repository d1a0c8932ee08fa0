"""OTLP over HTTP: `POST /v1/traces`, `/v1/logs` and `/v1/metrics`, protobuf or JSON. 200 means: on disk.

Errors are google.rpc.Status messages in the encoding of the request. 429 and 503 will get better by sending again, and
their Retry-After says when; all others will not. `/healthz` says that the process lives, `/readyz` that it takes
exports, `/metrics` what it did; `/delivered?within_s=10` answers when all that was acknowledged is in the store.
The last two ask for the token too.
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from collector import metrics
from collector.compression import EncodingError, TooLargeError, decompress
from collector.guard import same_site
from collector.ingest import THREAD_BYTES
from collector.otlp_json import to_protobuf
from collector.receiver import Held, Reason, Receiver, RefusedError
from collector.rpc_status import INVALID_ARGUMENT, NOT_FOUND, status_message

PROTOBUF, JSON = "application/x-protobuf", "application/json"
ENCODINGS = ("", "identity", "gzip", "deflate", "zstd")

STATUS: dict[Reason, int] = {
    "malformed": 400,
    "unauthenticated": 401,
    "too_large": 413,
    "unsupported": 415,
    "full": 429,
}
"""Whatever else stands in the way goes away by itself: 503."""


Delivered = Callable[[float], Awaitable[bool]]
"""Waits so many seconds for what was acknowledged to be in the store, and says whether it is."""
LONGEST_WAIT_S = 60.0


class OtlpHttp:
    """The routes."""

    def __init__(self, receiver: Receiver, delivered: Delivered) -> None:
        self._receiver = receiver
        self._delivered = delivered
        self._json = asyncio.Lock()
        """JSON takes ten times its size while it is converted: one body at a time."""

    def application(self, host: str) -> web.Application:
        """The application that serves them on `host`."""
        app = web.Application(middlewares=[same_site(host)])
        for signal in self._receiver.stores:
            app.router.add_post(f"/v1/{signal}", functools.partial(self._export, signal))
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/delivered", self._wait_until_delivered)
        app.router.add_post("/{other:.*}", self._no_such_path)
        return app

    async def _export(self, signal: str, request: web.Request) -> web.Response:
        try:
            answer = await self._receiver.export(
                signal, "http", _authorization(request), functools.partial(self._read, signal, request)
            )
        except RefusedError as error:
            return _refusal(request, error)
        return _answer(request, answer)

    async def _read(self, signal: str, request: web.Request, held: Held) -> bytes:
        """The body as plain protobuf. Raises RefusedError and MalformedError."""
        if request.content_type not in (PROTOBUF, JSON):
            raise _unsupported(f"content type {request.content_type} is not taken: send {PROTOBUF} or {JSON}")
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ENCODINGS:
            raise _unsupported(f"content encoding {encoding} is not taken: send gzip, deflate, zstd or none")
        body = await self._plain(encoding, await self._raw(request, held), held)
        if request.content_type != JSON:
            return body
        async with self._json:
            return await asyncio.to_thread(to_protobuf, self._receiver.stores[signal].signal, body)

    async def _raw(self, request: web.Request, held: Held) -> bytes:
        limit = self._receiver.max_body_bytes
        known = request.content_length
        if known is not None:
            if known > limit:
                raise self._receiver.too_large()
            held.hold(known)
        pieces, size = [], 0
        try:
            async for piece in request.content.iter_any():
                size += len(piece)
                if size > limit:
                    raise self._receiver.too_large()
                if known is None:
                    held.hold(len(piece))
                pieces.append(piece)
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise RefusedError("malformed", INVALID_ARGUMENT, "the body breaks the rules of HTTP") from error
        return b"".join(pieces)

    async def _plain(self, encoding: str, raw: bytes, held: Held) -> bytes:
        if encoding in ("", "identity"):
            return raw
        limit = self._receiver.max_body_bytes
        try:
            if len(raw) < THREAD_BYTES:
                plain = decompress(encoding, raw, limit)
            else:
                plain = await asyncio.to_thread(decompress, encoding, raw, limit)
        except TooLargeError:
            raise self._receiver.too_large() from None
        except EncodingError as error:
            raise RefusedError("malformed", INVALID_ARGUMENT, str(error)) from error
        held.hold(len(plain))
        return plain

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, _: web.Request) -> web.Response:
        problem = self._receiver.problem
        if problem is not None:
            return web.json_response({"status": "not ready", "reason": problem}, status=503)
        warning = self._receiver.warning()
        return web.json_response({"status": "ready"} | ({"warning": warning} if warning else {}))

    async def _wait_until_delivered(self, request: web.Request) -> web.Response:
        try:
            self._receiver.authorise(_authorization(request))
            within_s = min(max(float(request.query.get("within_s", "10")), 0.0), LONGEST_WAIT_S)
        except RefusedError as error:
            return _refusal(request, error)
        except ValueError:
            return web.json_response({"error": "within_s is a number of seconds"}, status=400)
        delivered = await self._delivered(within_s)
        return web.json_response({"delivered": delivered}, status=200 if delivered else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            self._receiver.authorise(_authorization(request))
        except RefusedError as error:
            return _refusal(request, error)
        return web.Response(body=metrics.render().encode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _no_such_path(self, request: web.Request) -> web.Response:
        taken = ", ".join(f"/v1/{signal}" for signal in self._receiver.stores)
        message = f"nothing is taken at {request.path[:200]}: OTLP/HTTP has {taken}, below OTEL_EXPORTER_OTLP_ENDPOINT"
        return _status(request, 404, status_message(NOT_FOUND, message), {"code": NOT_FOUND, "message": message}, {})


def _authorization(request: web.Request) -> str:
    return request.headers.get("Authorization", "")


def _unsupported(message: str) -> RefusedError:
    return RefusedError("unsupported", INVALID_ARGUMENT, message)


def _answer(request: web.Request, message: Message) -> web.Response:
    if request.content_type == JSON:
        return web.Response(body=orjson.dumps(MessageToDict(message)), content_type=JSON)
    return web.Response(body=message.SerializeToString(), content_type=PROTOBUF)


def _refusal(request: web.Request, error: RefusedError) -> web.Response:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.reason == "unsupported":
        headers["Accept-Encoding"] = "gzip, deflate, zstd, identity"
    if error.reason == "unauthenticated":
        headers["WWW-Authenticate"] = "Bearer"
    message = status_message(error.code, error.message)
    return _status(
        request, STATUS.get(error.reason, 503), message, {"code": error.code, "message": error.message}, headers
    )


def _status(
    request: web.Request, status: int, encoded: bytes, content: dict[str, int | str], headers: dict[str, str]
) -> web.Response:
    if request.content_type == JSON:
        return web.Response(status=status, body=orjson.dumps(content), content_type=JSON, headers=headers)
    return web.Response(status=status, body=encoded, content_type=PROTOBUF, headers=headers)
