"""A model call of a policy: asked for with tokens, recorded with them, answered without them.

Every such call is a native one of the engine (`Native`). Where the client speaks another API, an `Exchange` turns the
native answer, as its client would have got it, into the client's.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

import aiohttp
import orjson
from aiohttp import web

from sidecar.call import Call
from sidecar.chat import CHAT
from sidecar.chat_answer import Answer, mapping, text
from sidecar.chat_request import Hidden, with_fields
from sidecar.continuation.render import Renderer
from sidecar.dialect import Dialect, Exchange, Json, Native, NativeStream, Refusal, StreamWriter
from sidecar.forward import Inbound, engine_headers, identity_headers, recorded_headers, response_headers, upstream_url
from sidecar.policy import Replica
from sidecar.routes import Route
from sidecar.sse import DONE, Event, EventReader, EventTooLargeError

log = logging.getLogger(__name__)

UNREACHABLE, DIED, TIMEOUT = "upstream_unreachable", "upstream_died", "timeout"
UPSTREAM_FAILURES = (
    aiohttp.ClientPayloadError,
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    EventTooLargeError,
)
"""How reading from an upstream fails; a failed write to the client is none of these."""


NOTHING_HIDDEN = Hidden(token_ids=False, logprobs=False, usage=False)


@dataclass(frozen=True)
class Capture:
    """How one call is asked of the engine."""

    dialect: Dialect
    native: Native
    exchange: Exchange | None
    """None: the client speaks the engine's API, and gets its bytes."""
    body: Json
    """The native request, before capture fields are added."""
    raw: bytes | None
    """Its bytes, where they are the client's."""
    hidden: Hidden = NOTHING_HIDDEN
    """What the client did not ask for."""


async def captured_call(
    session: aiohttp.ClientSession, inbound: Inbound, call: Call, route: Route, capture: Capture
) -> web.StreamResponse:
    """Serve one call; fills in `call`. A replica that takes no connection is skipped: not a byte was sent to it.

    Once any byte of the request may have reached a replica the call is not tried elsewhere, also where a kept-alive
    connection turns out closed and nothing was answered: the engine may have begun to sample, and a request that ends
    engines must not be led through all of them. The client gets a 502, which SDKs try again by themselves.
    """
    assert route.policy is not None  # noqa: S101 - the caller chose by it
    call.policy = route.policy.name
    call.pins = pins = route.pins_of(call.identity)
    fields, hidden = capture.native.capture_fields({**capture.body, **pins} if pins else capture.body)
    capture = replace(capture, hidden=hidden)
    if pins:
        fields = {**pins, **fields}
    if route.served is not None and route.served != capture.body.get("model"):
        fields["model"] = route.served
    raw = capture.raw or orjson.dumps(capture.body)
    sent = with_fields(raw, capture.body, fields)
    path = inbound.path if capture.exchange is None else capture.native.path
    headers = recorded_headers(inbound.request.headers, route.authorization, call)
    if capture.raw is None:
        engine_headers(headers)
    tried: list[Replica] = []
    while (replica := await route.policy.choose(tried, call.identity.named)) is not None:
        with replica.serving() as stamp:
            call.replica, call.upstream, call.start = replica, replica.url, stamp
            data = sent
            if route.continuation is not None and capture.native is CHAT:
                renderer = Renderer(session, replica.url, headers.get("authorization"))
                call.continuation = await route.continuation.extend(renderer, call.identity, {**capture.body, **fields})
                if call.continuation is not None and (more := call.continuation.fields):
                    data = with_fields(raw, capture.body, {**fields, **more})
            try:
                upstream = await session.post(upstream_url(replica.url, path), data=data, headers=headers)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                replica.lost(f"engine at {replica.url} does not answer: {error}")
                tried.append(replica)
                continue
            except (aiohttp.ClientError, OSError) as error:
                return _died(capture, call, replica, error)
            async with upstream:
                return await _deliver(inbound, call, replica, upstream, capture)
    return unreachable(capture.dialect, call, ", ".join(replica.url for replica in tried))


def unreachable(dialect: Dialect, call: Call, upstreams: str) -> web.Response:
    """The answer when no upstream takes the connection."""
    message = f"no upstream answers at {upstreams}: start the model server, or correct `upstream` of [[model]]"
    call.status = 502
    call.fail(UNREACHABLE, message)
    return dialect.error(Refusal(502, message, UNREACHABLE))


def _died(capture: Capture, call: Call, replica: Replica, error: Exception) -> web.Response:
    replica.doubt()
    message = f"upstream at {replica.url} closed the connection before it answered: {error or type(error).__name__}"
    call.status = 502
    call.fail(DIED, message)
    return capture.dialect.error(Refusal(502, message, DIED))


async def _deliver(
    inbound: Inbound,
    call: Call,
    replica: Replica,
    upstream: aiohttp.ClientResponse,
    capture: Capture,
) -> web.StreamResponse:
    call.status = upstream.status
    if upstream.status == 200 and upstream.content_type == "text/event-stream":
        return await _deliver_stream(inbound, call, replica, upstream, capture)
    try:
        body = await upstream.read()
    except (aiohttp.ClientError, OSError) as error:
        return _died(capture, call, replica, error)
    if upstream.status >= 400:
        return _refused(call, upstream, capture, body)
    try:
        call.answer, shown = capture.native.read(body, capture.hidden)
    except ValueError:
        call.fail("invalid_answer", f"the answer of upstream at {replica.url} is not a JSON object")
        if capture.exchange is not None:
            return capture.dialect.error(Refusal(502, call.error_message, "invalid_answer"))
        return _response(upstream, body, changed=False)
    if call.continuation is not None:
        call.continuation.answered(call.answer)
    call.answer = _as_seen(call.answer, capture)
    if capture.exchange is not None:
        shown = orjson.dumps(capture.exchange.answer(orjson.loads(shown)))
    return _response(upstream, shown, changed=shown is not body)


def _as_seen(answer: Answer, capture: Capture) -> Answer:
    """An answer with the id that its client knows."""
    if capture.exchange is None or answer.id is None:
        return answer
    return replace(answer, id=capture.exchange.seen_id(answer.id))


def _refused(call: Call, upstream: aiohttp.ClientResponse, capture: Capture, body: bytes) -> web.Response:
    message = error_message(body, upstream)
    call.fail(str(upstream.status), message)
    if capture.exchange is None:
        return _response(upstream, body, changed=False)
    kept = {name: value for name, value in upstream.headers.items() if name.lower() == "retry-after"}
    return capture.dialect.error(Refusal(upstream.status, message, headers=kept))


def _response(upstream: aiohttp.ClientResponse, body: bytes, *, changed: bool) -> web.Response:
    headers = response_headers(upstream.headers, changed=changed)
    return web.Response(status=upstream.status, reason=upstream.reason, body=body, headers=headers)


async def _deliver_stream(
    inbound: Inbound,
    call: Call,
    replica: Replica,
    upstream: aiohttp.ClientResponse,
    capture: Capture,
) -> web.StreamResponse:
    headers = response_headers(upstream.headers, changed=True)
    headers.update(identity_headers(call))
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    stream, reader = capture.native.stream(capture.hidden), EventReader()
    client = _Translation(stream, capture.exchange.writer()) if capture.exchange is not None else stream
    try:
        await response.prepare(inbound.request)
        async for received in upstream.content.iter_any():
            ready = b"".join([client.pass_on(event) for event in reader.feed(received)])
            if stream.done and call.continuation is not None and call.continuation.waits:
                call.continuation.answered(stream.answer())
            if ready:
                await response.write(ready)
        if reader.rest:
            await response.write(client.pass_on(Event.last(reader.rest)))
        if not stream.done:
            raise aiohttp.ClientPayloadError("the stream ended before [DONE]")
    except UPSTREAM_FAILURES as error:
        replica.doubt()
        message = f"upstream at {replica.url} died in the middle of its answer: {error}"
        call.fail(DIED, message)
        await response.write(client.flush() + _error_event(client, capture, message, DIED))
    except asyncio.CancelledError:
        if not inbound.timed_out or not response.prepared:
            raise
        message = f"the call took longer than {inbound.limit_s} s"
        call.fail(TIMEOUT, message)
        await inbound.end_late(response, client.flush() + _error_event(client, capture, message, TIMEOUT))
        return response
    finally:
        call.answer = _as_seen(stream.answer(), capture)
        call.delivered = stream.done
    if stream.error is not None:
        call.fail("upstream_error", stream.error)
    await response.write_eof()
    return response


def _error_event(client: "NativeStream | _Translation", capture: Capture, message: str, code: str) -> bytes:
    if isinstance(client, _Translation):
        return client.writer.error(message, code)
    return capture.dialect.error_event(message, code)


class _Translation:
    """What the client of another API gets of a native stream."""

    def __init__(self, stream: NativeStream, writer: StreamWriter) -> None:
        self.writer = writer
        self._stream = stream
        self._failed = False

    def pass_on(self, event: Event) -> bytes:
        """The other API's events for one native event."""
        return self._events(self._stream.pass_on(event))

    def flush(self) -> bytes:
        """What is held back."""
        return self._events(self._stream.flush())

    def _events(self, native: bytes) -> bytes:
        written = []
        for event in EventReader().feed(native):
            if self._failed or event.data is None:
                continue
            if event.data == DONE:
                written.append(self.writer.end())
                continue
            chunk = orjson.loads(event.data)
            if "error" in chunk:
                self._failed = True
                written.append(self.writer.error(text(mapping(chunk["error"]).get("message")) or "", "upstream_error"))
            else:
                written.append(self.writer.chunk(chunk))
        return b"".join(written)


def error_message(body: bytes, upstream: aiohttp.ClientResponse) -> str:
    """What an upstream's error answer says."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    error = mapping(answer).get("error")
    found = text(mapping(error).get("message")) or text(error) or text(mapping(answer).get("message"))
    return found or f"{upstream.status} {upstream.reason}"
