"""Requests that the sidecar does not capture: forwarded byte for byte, both ways, as they come.

Model calls among them are recorded, marked `passthrough`, from a copy of at most `MAX_COPY_BYTES` of the answer. What
the record lacks of it is said on the span, and counted.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence

import aiohttp
import orjson
from aiohttp import hdrs, web

from sidecar.body import StreamedBody, declares_too_much
from sidecar.call import PASSTHROUGH, Call
from sidecar.dialect import Dialect, Refusal
from sidecar.failures import DIED, TIMEOUT, answered, error_message, note_refusal, unreachable
from sidecar.forward import (
    Inbound,
    identity_headers,
    recorded_headers,
    request_headers,
    response_headers,
    upstream_url,
)
from sidecar.gate import too_large
from sidecar.openai_error import openai_error
from sidecar.policy import unfit
from sidecar.routes import Route
from sidecar.sse import Event, EventReader

MAX_COPY_BYTES = 16 << 20
_turn = itertools.count()


async def recorded_call(
    session: aiohttp.ClientSession, inbound: Inbound, call: Call, route: Route, dialect: Dialect
) -> web.StreamResponse:
    """Forward a model call and note what it says of itself; it never trains."""
    call.untrainable = PASSTHROUGH
    headers = recorded_headers(inbound.request.headers, route.authorization, call)
    for url in _in_turn(_fit(route)):
        call.upstream = url
        try:
            upstream = await session.post(
                upstream_url(url, inbound.path), data=inbound.raw, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            continue
        except (aiohttp.ClientError, OSError) as error:
            call.status = 502
            call.fail(DIED, f"upstream at {url} closed the connection before it answered: {error}")
            return dialect.error(Refusal(502, call.error_message, DIED))
        async with upstream:
            return await _deliver_recorded(inbound, call, upstream, dialect)
    return unreachable(dialect, call, ", ".join(route.upstreams))


async def _deliver_recorded(
    inbound: Inbound, call: Call, upstream: aiohttp.ClientResponse, dialect: Dialect
) -> web.StreamResponse:
    call.status = upstream.status
    copy: list[bytes] = []
    headers = response_headers(upstream.headers, changed=False)
    headers.update(identity_headers(call))
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    ended = False
    try:
        problem = await _stream(inbound, upstream, response, copy, dialect)
        if problem == DIED:
            call.fail(DIED, f"upstream at {call.upstream} died in the middle of its answer")
        elif problem is not None:
            note_refusal(call, inbound.too_late)
        ended = problem is None
        return response
    finally:
        _note_answer(call, b"".join(copy), upstream, dialect, ended=ended)


def _note_answer(
    call: Call, content: bytes, upstream: aiohttp.ClientResponse, dialect: Dialect, *, ended: bool
) -> None:
    """Note what a copy of the answer says. `ended`: the upstream sent all that it meant to."""
    if len(content) > MAX_COPY_BYTES:
        call.unread = "too_long"
    elif upstream.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
        call.unread = "compressed"  # although we asked for none of that
    if upstream.status >= 400:
        said = answered(call.upstream, upstream.status, upstream.reason)
        call.fail(str(upstream.status), error_message(content, said))
        return
    if upstream.content_type == "text/event-stream":
        _note_stream(call, content, dialect, ended=ended)
        return
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        call.unread = call.unread or "no_json"
        return
    if isinstance(answer, dict):
        call.answer = dialect.read(answer)


def _note_stream(call: Call, content: bytes, dialect: Dialect, *, ended: bool) -> None:
    stream, reader = dialect.reader(), EventReader()
    for event in reader.feed(content):
        stream.read(event)
    if ended and reader.rest:
        stream.read(Event.last(reader.rest))
    call.answer, call.delivered = stream.answer(), stream.done
    if stream.error is not None:
        call.fail("upstream_error", stream.error)
    elif ended and not stream.done and call.unread is None:
        call.fail(DIED, f"the stream of upstream at {call.upstream} ended before its own end")


async def forward(session: aiohttp.ClientSession, inbound: Inbound, route: Route, limit: float) -> web.StreamResponse:
    """Forward anything else to the route's upstream, unrecorded, its body never held in memory.

    Without a body it is tried at the next upstream where one takes no connection. Raises Refusal (413) for a body of
    more than `limit` bytes.
    """
    request = inbound.request
    headers = request_headers(request.headers, route.authorization)
    if declares_too_much(request, limit):
        raise too_large(limit)
    body = StreamedBody(request, limit) if request.can_read_body else None
    if body is not None and request.content_length is not None:
        headers[hdrs.CONTENT_LENGTH] = str(request.content_length)
    if (encoding := request.headers.get(hdrs.CONTENT_ENCODING)) is not None:
        headers[hdrs.CONTENT_ENCODING] = encoding
    problems = []
    for url in _in_turn(route.upstreams):
        try:
            upstream = await session.request(
                request.method, upstream_url(url, inbound.path), data=body, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError) as error:
            if body is not None and body.refusal is not None:
                raise body.refusal from error
            problems.append(f"{url} ({error})")
            if body is not None or not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
                break
            continue
        async with upstream:
            headers = response_headers(upstream.headers, changed=False)
            response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
            await _stream(inbound, upstream, response, None, None)
            return response
    message = f"no upstream answers at {', '.join(problems)}: start it, or correct `upstream` of [[model]]"
    return openai_error(502, message, code="upstream_unreachable")


async def _stream(
    inbound: Inbound,
    upstream: aiohttp.ClientResponse,
    response: web.StreamResponse,
    copy: list[bytes] | None,
    dialect: Dialect | None,
) -> str | None:
    """Pass an answer on; None, or why it did not come to its end. The status is out: so its client's breaks off too.

    `dialect`: in whose words a stream of events ends whose time is over.
    """
    request = inbound.request
    await response.prepare(request)
    copied = 0
    try:
        async for received in upstream.content.iter_any():
            if copy is not None and copied <= MAX_COPY_BYTES:
                copied += len(received)
                copy.append(received)
            await response.write(received)
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        if request.transport is not None:
            request.transport.abort()
        return DIED
    except asyncio.CancelledError:
        if not inbound.timed_out:
            raise
        events = upstream.content_type == "text/event-stream" and hdrs.CONTENT_ENCODING not in upstream.headers
        late, event = inbound.too_late, None
        if dialect is not None and events:
            # The blank line ends an event that is half out.
            event = b"\n\n" + dialect.error_event(late.message, late.code or TIMEOUT)
        await inbound.end_late(response, event)
        return TIMEOUT
    with contextlib.suppress(ConnectionError):  # it has all of it, and may close before we say that this was all
        await response.write_eof()
    return None


def _fit(route: Route) -> Sequence[str]:
    """The upstreams but those with unknown weights. Raises Refusal (503) where all have."""
    if route.policy is None or not (broken := [one for one in route.policy.replicas if one.broken]):
        return route.upstreams
    if len(broken) == len(route.policy.replicas):
        raise unfit(broken)
    return [one.url for one in route.policy.replicas if one not in broken]


def _in_turn(upstreams: Sequence[str]) -> Iterator[str]:
    first = next(_turn) % len(upstreams)
    return iter((*upstreams[first:], *upstreams[:first]))
