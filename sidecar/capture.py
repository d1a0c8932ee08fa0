"""A chat completion of a policy: asked for with tokens, recorded with them, answered without them."""

import logging

import aiohttp
import orjson
from aiohttp import web

from sidecar.call import Call
from sidecar.chat_answer import mapping, read_answer, text
from sidecar.chat_request import Hidden, capture_fields, with_fields
from sidecar.chat_stream import ChatStream, hide
from sidecar.forward import Inbound, identity_headers, recorded_headers, response_headers, upstream_url
from sidecar.openai_error import error_body, openai_error
from sidecar.policy import Replica
from sidecar.routes import Route
from sidecar.sse import Event, EventReader, EventTooLargeError

log = logging.getLogger(__name__)

UNREACHABLE, DIED = "upstream_unreachable", "upstream_died"
UPSTREAM_FAILURES = (
    aiohttp.ClientPayloadError,
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    EventTooLargeError,
)
"""How reading from an upstream fails; a failed write to the client is none of these."""


async def captured_chat(
    session: aiohttp.ClientSession, inbound: Inbound, call: Call, route: Route
) -> web.StreamResponse:
    """Serve one call; fills in `call`. A replica that refuses connections is skipped: nothing was sent to it."""
    assert route.policy is not None  # noqa: S101 - the caller chose by it
    call.policy = route.policy.name
    fields, hidden = capture_fields(call.body)
    sent = with_fields(inbound.raw, call.body, fields)
    headers = recorded_headers(inbound.request.headers, route.authorization, call)
    tried: list[Replica] = []
    while (replica := await route.policy.choose(tried)) is not None:
        with replica.serving() as stamp:
            call.replica, call.upstream, call.start = replica, replica.url, stamp
            try:
                upstream = await session.post(upstream_url(replica.url, inbound.path), data=sent, headers=headers)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                replica.lost(f"engine at {replica.url} does not answer: {error}")
                tried.append(replica)
                continue
            except (aiohttp.ClientError, OSError) as error:
                return _died(call, replica, error)
            async with upstream:
                return await _deliver(inbound.request, call, replica, upstream, hidden)
    return unreachable(call, ", ".join(replica.url for replica in tried))


def unreachable(call: Call, upstreams: str) -> web.Response:
    """The answer when no upstream takes the connection."""
    message = f"no upstream answers at {upstreams}: start the model server, or correct `upstream` of [[model]]"
    call.status = 502
    call.fail(UNREACHABLE, message)
    return openai_error(502, message, code=UNREACHABLE)


def _died(call: Call, replica: Replica, error: Exception) -> web.Response:
    replica.doubt()
    message = f"upstream at {replica.url} closed the connection before it answered: {error or type(error).__name__}"
    call.status = 502
    call.fail(DIED, message)
    return openai_error(502, message, code=DIED)


async def _deliver(
    request: web.Request, call: Call, replica: Replica, upstream: aiohttp.ClientResponse, hidden: Hidden
) -> web.StreamResponse:
    call.status = upstream.status
    if upstream.status == 200 and upstream.content_type == "text/event-stream":
        return await _deliver_stream(request, call, replica, upstream, hidden)
    try:
        body = await upstream.read()
    except (aiohttp.ClientError, OSError) as error:
        return _died(call, replica, error)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    changed = False
    if upstream.status >= 400:
        call.fail(str(upstream.status), error_message(answer, upstream))
    elif isinstance(answer, dict):
        call.answer = read_answer(answer)
        if changed := not hidden.nothing:
            hide(answer, hidden)
            body = orjson.dumps(answer)
    else:
        call.fail("invalid_answer", f"the answer of upstream at {replica.url} is not a JSON object")
    headers = response_headers(upstream.headers, changed=changed)
    return web.Response(status=upstream.status, reason=upstream.reason, body=body, headers=headers)


async def _deliver_stream(
    request: web.Request, call: Call, replica: Replica, upstream: aiohttp.ClientResponse, hidden: Hidden
) -> web.StreamResponse:
    headers = response_headers(upstream.headers, changed=True)
    headers.update(identity_headers(call))
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    stream, reader = ChatStream(hidden), EventReader()
    try:
        await response.prepare(request)
        async for received in upstream.content.iter_any():
            if ready := b"".join([stream.pass_on(event) for event in reader.feed(received)]):
                await response.write(ready)
        if reader.rest:
            await response.write(stream.pass_on(Event.last(reader.rest)))
        if not stream.done:
            raise aiohttp.ClientPayloadError("the stream ended before [DONE]")
    except UPSTREAM_FAILURES as error:
        replica.doubt()
        message = f"upstream at {replica.url} died in the middle of its answer: {error}"
        call.fail(DIED, message)
        await response.write(stream.flush() + b"data: " + error_body(message, code=DIED) + b"\n\n")
    finally:
        call.answer = stream.answer()
        call.delivered = stream.done
    if stream.error is not None:
        call.fail("upstream_error", stream.error)
    await response.write_eof()
    return response


def error_message(answer: object, upstream: aiohttp.ClientResponse) -> str:
    """What an upstream's error answer says."""
    error = mapping(answer).get("error")
    found = text(mapping(error).get("message")) or text(error) or text(mapping(answer).get("message"))
    return found or f"{upstream.status} {upstream.reason}"
