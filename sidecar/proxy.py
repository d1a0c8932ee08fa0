"""The port that agents talk to: decides what a request is, and sees to it that every model call is recorded once."""

import asyncio
import contextlib
import re
import time
from collections import Counter
from urllib.parse import unquote

import aiohttp
import orjson
from aiohttp import hdrs, web

from sidecar.access_log import AccessLog, Visit
from sidecar.anthropic.count import COUNT_PATH, MESSAGES_PATH, count_tokens
from sidecar.body import invite_body, parsed, read_body, with_model
from sidecar.call import DISCONNECTED, Call
from sidecar.capture import captured_call
from sidecar.chat import CHAT, ChatDialect
from sidecar.chat_answer import text
from sidecar.chat_request import with_fields
from sidecar.deliver import Capture
from sidecar.dialect import Caller, Dialect, Refusal
from sidecar.dialects import dialects
from sidecar.engine import is_open
from sidecar.exposition import Histogram
from sidecar.facts import Facts
from sidecar.failures import note_refusal, stopping
from sidecar.forward import KEEPALIVE_S, Clients, Inbound, identity_headers
from sidecar.gate import Gate
from sidecar.identity import identify
from sidecar.models import list_models, show_model
from sidecar.openai_error import openai_error
from sidecar.passthrough import forward, recorded_call
from sidecar.prompts import Prompts
from sidecar.recorder import Recorder
from sidecar.responses.store_thread import StoreThread
from sidecar.responses.stored import about_stored, names_response
from sidecar.routes import Route, Routes
from sidecar.target import Target, split_target
from sidecar.under_way import UnderWay
from tracegrad import names
from tracegrad.http_client import HttpClient

POLICY_PROVIDER = "vllm"

_MODEL_PATH = re.compile(r"/v1/models/([^?]+)")
_FALLBACK = ChatDialect()


class Proxy:
    """Handles every request of the agents' port. What has no underscore may be replaced while it serves."""

    def __init__(
        self,
        routes: Routes,
        session: aiohttp.ClientSession,
        recorder: Recorder,
        *,
        gate: Gate,
        prompts: Prompts,
        responses: StoreThread,
    ) -> None:
        self.under_way = UnderWay()
        self.routes = routes
        self.gate = gate
        self.access_log: AccessLog | None = None
        self.refusals: Counter[str] = Counter()
        """Requests that the gate turned away, by code."""
        self.durations = Histogram()
        self._session = session
        self._clients = Clients(HttpClient(KEEPALIVE_S), session)
        self._recorder = recorder
        self._prompts = prompts
        self._responses = responses
        self._dialects = dialects(responses)

    async def _expect(self, request: web.BaseRequest) -> None:
        """Tell a client that waits with its body to go on, or not."""
        try:
            target = split_target(request.raw_path, request.method)
        except Refusal:
            return  # its answer says so, and needs no body
        called = target.path.partition("?")[0] in self._dialects
        await invite_body(request, self.gate.max_body_bytes if called else self.gate.max_upload_bytes)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, and say so in the access log."""
        visit, task = Visit(time.time_ns()), self.under_way.enter()
        response: web.StreamResponse | None = None
        try:
            if hdrs.EXPECT in request.headers:
                await self._expect(request)
            response = await self._answer(request, visit)
            if self.access_log is not None:
                with contextlib.suppress(ConnectionError):  # aiohttp sees it too
                    await response.prepare(request)
                    await response.write_eof()
            return response
        finally:
            self.under_way.leave(task)
            self.durations.observe((time.time_ns() - visit.started_ns) / 1e9)
            if self.access_log is not None:
                self.access_log.note(request, response, visit, stopping=self.under_way.stopping)

    async def end(self) -> None:
        """Have all requests under way end now, with an error."""
        self.gate.close()
        await self.under_way.end()

    async def _answer(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        try:
            target = split_target(request.raw_path, request.method)
        except Refusal as refusal:
            return self._turned_away(self._meant(request.raw_path), refusal, visit)
        path = target.path.partition("?")[0]
        dialect = self._dialects.get(path) if request.method == "POST" else None
        gate = self.gate
        try:
            caller = gate.caller(request.headers)
            visit.tenant = caller.tenant
            async with gate.slot(caller):
                if dialect is not None:
                    return await self._model_call(request, target, dialect, caller, visit)
                return await self._other(request, target, path, caller)
        except Refusal as refusal:
            return self._turned_away(dialect or _FALLBACK, refusal, visit)

    def _turned_away(self, dialect: Dialect, refusal: Refusal, visit: Visit) -> web.Response:
        visit.error = refusal.code
        self.refusals[refusal.code or str(refusal.status)] += 1
        return _refused(dialect, refusal)

    def _meant(self, raw_path: str) -> Dialect:
        """Whose words a client understands whose path is none of ours."""
        path = raw_path.partition("?")[0]
        return next((dialect for end, dialect in self._dialects.items() if path.endswith(end)), _FALLBACK)

    async def _other(self, request: web.BaseRequest, target: Target, path: str, caller: Caller) -> web.StreamResponse:
        if (kept := await about_stored(self._responses, caller.tenant, request, path)) is not None:
            return kept
        route = self.routes.default
        if route.policy is not None and (missing := names_response(path)):
            raise Refusal(404, f"Response with id '{missing}' not found.")
        if route.policy is not None and path != COUNT_PATH and not is_open(request.method, unquote(path)):
            message = f"{request.method} {path} is closed to agents: it could change the engine, or go unrecorded"
            return openai_error(403, message, code="closed_path")
        inbound, limit = self._inbound(request, target), self.gate.max_upload_bytes
        try:
            async with asyncio.timeout(inbound.limit_s) as inbound.deadline:
                if request.method == "POST" and path == COUNT_PATH:
                    return await self._count_tokens(inbound, target)
                if request.method == "GET" and path == "/v1/models":
                    return await list_models(self._session, self.routes, inbound, limit)
                if request.method == "GET" and (model := _MODEL_PATH.fullmatch(path)):
                    return await show_model(self._session, self.routes, inbound, unquote(model[1]), limit)
                return await forward(self._session, inbound, route, limit)
        except TimeoutError:
            raise _too_late(inbound) from None

    def _inbound(self, request: web.BaseRequest, target: Target) -> Inbound:
        inbound = Inbound(request, target.path, limit_s=self.gate.timeout_s)
        self.under_way.limits(inbound)
        return inbound

    async def _model_call(
        self, request: web.BaseRequest, target: Target, dialect: Dialect, caller: Caller, visit: Visit
    ) -> web.StreamResponse:
        visit.call = call = Call(identify(target, request.headers), time.time_ns(), operation=dialect.operation)
        call.tenant, call.agent = caller.tenant, request.headers.get(names.HEADER_AGENT)
        inbound = self._inbound(request, target)
        response: web.StreamResponse | None = None
        try:
            try:
                async with asyncio.timeout(inbound.limit_s) as inbound.deadline:
                    response = await self._serve(inbound, call, dialect, caller)
            except Refusal as refusal:
                response = self._refuse(call, dialect, refusal)
            except TimeoutError:
                response = self._refuse(call, dialect, _too_late(inbound))
            if not response.prepared:
                response.headers.update(identity_headers(call))
                await response.prepare(request)
                await response.write_eof()
        except (asyncio.CancelledError, aiohttp.ClientConnectionResetError, ConnectionResetError):
            self._cut_off(call)
            raise
        finally:
            if response is None and call.error_type is None and not call.delivered:
                call.status = 500
                call.fail("internal_error", "the sidecar failed")
            self._recorder.finish(call)
        return response

    async def _serve(self, inbound: Inbound, call: Call, dialect: Dialect, caller: Caller) -> web.StreamResponse:
        inbound.raw = await read_body(inbound.request, self.gate.max_body_bytes)
        body, unfit = parsed(inbound.raw)
        call.body, identity = body, call.identity
        facts = Facts(dialect, body, text(body.get("model")), identity.named, call.agent, inbound.request.headers)
        route = self._route(facts, unfit)
        if unfit is not None and not body:
            call.provider = dialect.provider
            return await recorded_call(self._session, inbound, call, route, dialect)
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
                return await captured_call(self._clients, inbound, call, route, capture)
            if (exchange := await dialect.open(body, caller)) is not None:
                call.chat = lambda _: exchange.chat
                capture = Capture(dialect, CHAT, exchange, exchange.chat, None)
                return await captured_call(self._clients, inbound, call, route, capture)
        else:
            call.provider = dialect.provider
        if route.served is not None and route.served != facts.model:
            named = {"model": route.served}
            inbound.raw = with_fields(inbound.raw, body, named) if unfit is None else with_model(inbound.raw, named)
        return await recorded_call(self._session, inbound, call, route, dialect)

    def _route(self, facts: Facts, unfit: Refusal | None) -> Route:
        """The route of a call. `unfit`: what it is answered with unless it goes to a provider, who gets anything."""
        route = self.routes.choose(facts)
        if unfit is not None and (route is None or route.policy is not None):
            raise unfit
        if route is None and facts.model is not None:
            raise Refusal(404, self.routes.refusal(facts.model), "model_not_found")
        if route is None:
            raise Refusal(400, "you must provide a model parameter", "missing_model")
        return route

    async def _count_tokens(self, inbound: Inbound, target: Target) -> web.StreamResponse:
        dialect, headers = self._dialects[MESSAGES_PATH], inbound.request.headers
        try:
            inbound.raw = await read_body(inbound.request, self.gate.max_body_bytes)
            body, unfit = parsed(inbound.raw)
            named, agent = identify(target, headers).named, headers.get(names.HEADER_AGENT)
            route = self._route(Facts(dialect, body, text(body.get("model")), named, agent, headers), unfit)
            return await count_tokens(self._session, inbound, body, route)
        except Refusal as refusal:
            return _refused(dialect, refusal)

    def _refuse(self, call: Call, dialect: Dialect, refusal: Refusal) -> web.Response:
        call.status = refusal.status
        note_refusal(call, refusal)
        return _refused(dialect, refusal)

    def _cut_off(self, call: Call) -> None:
        if call.delivered:
            return
        if self.under_way.stopping:
            call.status = call.status or 503
            note_refusal(call, stopping())
        else:
            call.fail(DISCONNECTED, "the client went away before the answer ended", DISCONNECTED)


def _refused(dialect: Dialect, refusal: Refusal) -> web.Response:
    answer = dialect.error(refusal)
    if refusal.status == 413:
        answer.force_close()  # the rest of the body stays unread
    return answer


def _too_late(inbound: Inbound) -> Refusal:
    """The answer to a request whose time is over. Raises the TimeoutError in flight where it was another's limit."""
    if not inbound.timed_out:
        raise  # noqa: PLE0704 - called while it is handled
    return inbound.too_late
