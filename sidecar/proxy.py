"""The port that agents talk to: decides what a request is, and sees to it that every model call is recorded once."""

import asyncio
import re
import time
from urllib.parse import unquote

import aiohttp
import orjson
from aiohttp import web

from sidecar.call import DISCONNECTED, Call
from sidecar.capture import TIMEOUT, Capture, captured_call
from sidecar.chat import CHAT, ChatDialect
from sidecar.chat_answer import ABORTED, text
from sidecar.chat_request import with_fields
from sidecar.dialect import Caller, Dialect, Refusal
from sidecar.dialects import dialects
from sidecar.engine import CONTROL_PATHS
from sidecar.facts import Facts
from sidecar.forward import Inbound, identity_headers
from sidecar.gate import Gate
from sidecar.identity import Target, identify, split_target
from sidecar.models import list_models, show_model
from sidecar.openai_error import openai_error
from sidecar.passthrough import forward, recorded_call
from sidecar.prompts import Prompts
from sidecar.recorder import Recorder
from sidecar.responses.store import ResponseStore
from sidecar.routes import Routes
from tracegrad import names

POLICY_PROVIDER = "vllm"

_MODEL_PATH = re.compile(r"/v1/models/([^?]+)")
_FALLBACK = ChatDialect()


class Proxy:
    """Handles every request of the agents' port. `routes` and `gate` may be replaced while it serves."""

    def __init__(
        self,
        routes: Routes,
        session: aiohttp.ClientSession,
        recorder: Recorder,
        *,
        gate: Gate,
        prompts: Prompts,
        responses: ResponseStore,
    ) -> None:
        self.stopping = False
        """Calls cut off from now on were cut off by us, not by their client."""
        self.routes = routes
        self.gate = gate
        self._session = session
        self._recorder = recorder
        self._prompts = prompts
        self._dialects = dialects(responses)

    def application(self) -> web.Application:
        """The aiohttp application: one handler for all paths."""
        app = web.Application(client_max_size=self.gate.max_body_bytes)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        target = split_target(request.raw_path)
        if target is None or not target.path.startswith("/"):
            return openai_error(400, "the rollout id in the path must be printable ASCII without spaces")
        path = target.path.partition("?")[0]
        dialect = self._dialects.get(path) if request.method == "POST" else None
        try:
            caller = self.gate.caller(request.headers)
            with self.gate.slot():
                if dialect is not None:
                    return await self._model_call(request, target, dialect, caller)
                return await self._other(request, target, path)
        except Refusal as refusal:
            return (dialect or _FALLBACK).error(refusal)

    async def _other(self, request: web.Request, target: Target, path: str) -> web.StreamResponse:
        if request.method == "GET" and path == "/v1/models":
            return await list_models(self._session, self.routes, request)
        if request.method == "GET" and (model := _MODEL_PATH.fullmatch(path)):
            return await show_model(self._session, self.routes, request, unquote(model[1]))
        route = self.routes.default
        if route.policy is not None and unquote(path).rstrip("/") in CONTROL_PATHS:
            message = f"{path} changes the engine and is not for agents: publish through the sidecar's admin port"
            return openai_error(403, message, code="control_path")
        return await forward(self._session, request, route, target.path)

    async def _model_call(
        self, request: web.Request, target: Target, dialect: Dialect, caller: Caller
    ) -> web.StreamResponse:
        call = Call(identify(target, request.headers), time.time_ns(), operation=dialect.operation)
        call.tenant, call.agent = caller.tenant, request.headers.get(names.HEADER_AGENT)
        inbound = Inbound(request, target.path, limit_s=self.gate.timeout_s)
        response: web.StreamResponse | None = None
        try:
            try:
                async with asyncio.timeout(inbound.limit_s) as inbound.deadline:
                    response = await self._serve(inbound, call, dialect, caller)
            except Refusal as refusal:
                response = self._refuse(call, dialect, refusal)
            except TimeoutError:
                if not inbound.timed_out:
                    raise
                late = Refusal(504, f"the call took longer than {inbound.limit_s} s: ask for less, or wait", TIMEOUT)
                response = self._refuse(call, dialect, late)
            if not response.prepared:
                response.headers.update(identity_headers(call))
                await response.prepare(request)
                await response.write_eof()
        except (asyncio.CancelledError, aiohttp.ClientConnectionResetError, ConnectionResetError):
            self._cut_off(call)
            raise
        finally:
            if response is None and call.error_type is None and not call.delivered:
                call.fail("internal_error", "the sidecar failed")
            self._recorder.finish(call)
        return response

    async def _serve(self, inbound: Inbound, call: Call, dialect: Dialect, caller: Caller) -> web.StreamResponse:
        limit = self.gate.max_body_bytes
        try:
            raw = await inbound.request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise Refusal(413, f"the request is larger than {limit} bytes", "request_too_large") from error
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"the request body is not JSON: {error}", "invalid_json") from error
        if not isinstance(body, dict):
            raise Refusal(400, "the request body is not a JSON object", "invalid_json")
        call.body = body
        identity = call.identity
        facts = Facts(dialect, body, text(body.get("model")), identity.named, call.agent, inbound.request.headers)
        route = self.routes.choose(facts)
        if route is None and facts.model is None:
            raise Refusal(400, "you must provide a model parameter", "missing_model")
        if route is None:
            raise Refusal(404, self.routes.refusal(str(facts.model)), "model_not_found")
        inbound.raw = raw
        if (prompt := self._prompts.choose(facts, identity.rollout_id)) is not None:
            call.prompt = (prompt.name, prompt.version)
            if prompt.text != facts.system:
                call.body = body = dialect.replace_system(body, prompt.text)
                inbound.raw = orjson.dumps(body)
        call.chat = dialect.as_chat
        if route.policy is not None:
            call.provider = POLICY_PROVIDER
            if dialect.native is not None:
                capture = Capture(dialect, dialect.native, None, body, inbound.raw)
                return await captured_call(self._session, inbound, call, route, capture)
            if (exchange := dialect.open(body, caller)) is not None:
                call.chat = lambda _: exchange.chat
                capture = Capture(dialect, CHAT, exchange, exchange.chat, None)
                return await captured_call(self._session, inbound, call, route, capture)
        else:
            call.provider = dialect.provider
        if route.served is not None and route.served != facts.model:
            inbound.raw = with_fields(inbound.raw, body, {"model": route.served})
        return await recorded_call(self._session, inbound, call, route, dialect)

    def _refuse(self, call: Call, dialect: Dialect, refusal: Refusal) -> web.Response:
        call.status = refusal.status
        call.fail(refusal.code or str(refusal.status), refusal.message)
        return dialect.error(refusal)

    def _cut_off(self, call: Call) -> None:
        if call.delivered:
            return
        if self.stopping:
            call.fail("shutdown", "the sidecar stopped before the answer ended", ABORTED)
        else:
            call.fail(DISCONNECTED, "the client went away before the answer ended", DISCONNECTED)
