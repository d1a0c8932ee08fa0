"""The port that agents talk to: decides what a request is, and sees to it that every model call is recorded once."""

import asyncio
import re
import time
from urllib.parse import unquote

import aiohttp
import orjson
from aiohttp import web

from sidecar.call import DISCONNECTED, Call
from sidecar.capture import captured_chat
from sidecar.chat_answer import ABORTED
from sidecar.engine import CONTROL_PATHS
from sidecar.forward import Inbound, identity_headers
from sidecar.identity import Target, identify, split_target
from sidecar.models import list_models, show_model, unknown_model
from sidecar.openai_error import openai_error
from sidecar.passthrough import forward, recorded_call
from sidecar.recorder import Recorder
from sidecar.routes import Routes

MAX_BODY_BYTES = 64 << 20
CHAT = "/v1/chat/completions"
OPERATIONS = {
    CHAT: ("chat", "openai"),
    "/v1/completions": ("text_completion", "openai"),
    "/v1/embeddings": ("embeddings", "openai"),
    "/v1/messages": ("chat", "anthropic"),
    "/v1/responses": ("chat", "openai"),
}
"""Paths that are model calls, and what OpenTelemetry calls the operation and the provider whose API it is."""

POLICY_PROVIDER = "vllm"

_MODEL_PATH = re.compile(r"/v1/models/([^?]+)")


class Proxy:
    """Handles every request of the agents' port."""

    def __init__(self, routes: Routes, session: aiohttp.ClientSession, recorder: Recorder) -> None:
        self.stopping = False
        """Calls cut off from now on were cut off by us, not by their client."""
        self._routes = routes
        self._session = session
        self._recorder = recorder

    def application(self) -> web.Application:
        """The aiohttp application: one handler for all paths."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        target = split_target(request.raw_path)
        if target is None or not target.path.startswith("/"):
            return openai_error(400, "the rollout id in the path must be printable ASCII without spaces")
        path = target.path.partition("?")[0]
        if request.method == "POST" and path in OPERATIONS:
            return await self._model_call(request, target, path)
        if request.method == "GET" and path == "/v1/models":
            return await list_models(self._session, self._routes, request)
        if request.method == "GET" and (model := _MODEL_PATH.fullmatch(path)):
            return await show_model(self._session, self._routes, request, unquote(model[1]))
        route = self._routes.default
        if route.policy is not None and unquote(path).rstrip("/") in CONTROL_PATHS:
            message = f"{path} changes the engine and is not for agents: publish through the sidecar's admin port"
            return openai_error(403, message, code="control_path")
        return await forward(self._session, request, route, target.path)

    async def _model_call(self, request: web.Request, target: Target, path: str) -> web.StreamResponse:
        call = Call(identify(target, request.headers), time.time_ns(), operation=OPERATIONS[path][0])
        response: web.StreamResponse | None = None
        try:
            response = await self._serve(request, call, target.path, path)
            if not response.prepared:
                response.headers.update(identity_headers(call))
                await response.prepare(request)
                await response.write_eof()
        except web.HTTPRequestEntityTooLarge:
            response = self._refuse(
                call, 413, f"the request is larger than {MAX_BODY_BYTES} bytes", "request_too_large"
            )
        except (asyncio.CancelledError, aiohttp.ClientConnectionResetError, ConnectionResetError):
            self._cut_off(call)
            raise
        finally:
            if response is None and call.error_type is None and not call.delivered:
                call.fail("internal_error", "the sidecar failed")
            self._recorder.finish(call)
        return response

    async def _serve(self, request: web.Request, call: Call, full_path: str, path: str) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            return self._refuse(call, 400, f"the request body is not JSON: {error}", "invalid_json")
        if not isinstance(body, dict):
            return self._refuse(call, 400, "the request body is not a JSON object", "invalid_json")
        call.body = body
        model = body.get("model")
        route = self._routes.for_model(model if isinstance(model, str) else None)
        if route is None and model is None:
            return self._refuse(call, 400, "you must provide a model parameter", "missing_model")
        if route is None:
            call.status = 404
            call.fail("model_not_found", f"unknown model {model!r}")
            return unknown_model(str(model), dict.fromkeys(self._routes.names))
        call.provider = POLICY_PROVIDER if route.policy is not None else OPERATIONS[path][1]
        serve = captured_chat if route.policy is not None and path == CHAT else recorded_call
        return await serve(self._session, Inbound(request, full_path, raw), call, route)

    def _refuse(self, call: Call, status: int, message: str, code: str) -> web.Response:
        call.status = status
        call.fail(code, message)
        return openai_error(status, message, code=code)

    def _cut_off(self, call: Call) -> None:
        if call.delivered:
            return
        if self.stopping:
            call.fail("shutdown", "the sidecar stopped before the answer ended", ABORTED)
        else:
            call.fail(DISCONNECTED, "the client went away before the answer ended", DISCONNECTED)
