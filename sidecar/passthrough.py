"""Requests that the sidecar does not capture: forwarded byte for byte, both ways, as they come.

Model calls among them are recorded, marked `passthrough`, from a copy of at most `MAX_COPY_BYTES` of the answer.
"""

import itertools
from collections.abc import Iterator, Sequence

import aiohttp
import orjson
from aiohttp import hdrs, web

from sidecar.call import PASSTHROUGH, Call
from sidecar.capture import DIED, UPSTREAM_FAILURES, error_message, unreachable
from sidecar.dialect import Dialect, Refusal
from sidecar.forward import (
    Inbound,
    identity_headers,
    recorded_headers,
    request_headers,
    response_headers,
    upstream_url,
)
from sidecar.openai_error import openai_error
from sidecar.routes import Route
from sidecar.sse import EventReader

MAX_COPY_BYTES = 16 << 20
_turn = itertools.count()


async def recorded_call(
    session: aiohttp.ClientSession, inbound: Inbound, call: Call, route: Route, dialect: Dialect
) -> web.StreamResponse:
    """Forward a model call and note what it says of itself; it never trains."""
    call.untrainable = PASSTHROUGH
    headers = recorded_headers(inbound.request.headers, route.authorization, call)
    for url in _in_turn(route.upstreams):
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
            return await _deliver_recorded(inbound.request, call, upstream, dialect)
    return unreachable(dialect, call, ", ".join(route.upstreams))


async def _deliver_recorded(
    request: web.Request, call: Call, upstream: aiohttp.ClientResponse, dialect: Dialect
) -> web.StreamResponse:
    call.status = upstream.status
    copy: list[bytes] = []
    headers = response_headers(upstream.headers, changed=False)
    headers.update(identity_headers(call))
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    try:
        if not await _stream(request, upstream, response, copy):
            call.fail(DIED, f"upstream at {call.upstream} died in the middle of its answer")
        return response
    finally:
        _note_answer(call, b"".join(copy), upstream, dialect)


def _note_answer(call: Call, content: bytes, upstream: aiohttp.ClientResponse, dialect: Dialect) -> None:
    if upstream.content_type == "text/event-stream":
        stream = dialect.reader()
        for event in EventReader().feed(content):
            stream.read(event)
        call.answer, call.delivered = stream.answer(), stream.done
        return
    if upstream.status >= 400:
        call.fail(str(upstream.status), error_message(content, upstream))
        return
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        return  # an answer of a provider, in whatever form it likes
    if isinstance(answer, dict):
        call.answer = dialect.read(answer)


async def forward(session: aiohttp.ClientSession, request: web.Request, route: Route, path: str) -> web.StreamResponse:
    """Forward anything else to the route's upstream, unrecorded, its body never held in memory."""
    headers = request_headers(request.headers, route.authorization)
    body = request.content if request.can_read_body else None
    if body is not None and hdrs.CONTENT_ENCODING not in request.headers and request.content_length is not None:
        headers[hdrs.CONTENT_LENGTH] = str(request.content_length)
    url = next(_in_turn(route.upstreams))
    try:
        upstream = await session.request(
            request.method, upstream_url(url, path), data=body, headers=headers, allow_redirects=False
        )
    except (aiohttp.ClientError, OSError) as error:
        message = f"no upstream answers at {url} ({error}): start it, or correct `upstream` of [[model]]"
        return openai_error(502, message, code="upstream_unreachable")
    async with upstream:
        headers = response_headers(upstream.headers, changed=False)
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        await _stream(request, upstream, response, None)
        return response


async def _stream(
    request: web.Request, upstream: aiohttp.ClientResponse, response: web.StreamResponse, copy: list[bytes] | None
) -> bool:
    """Whether the upstream's answer came to its end. If not, the client's breaks off like it: the status is out."""
    await response.prepare(request)
    copied = 0
    try:
        async for received in upstream.content.iter_any():
            if copy is not None and copied <= MAX_COPY_BYTES:
                copied += len(received)
                copy.append(received)
            await response.write(received)
    except UPSTREAM_FAILURES:
        if request.transport is not None:
            request.transport.abort()
        return False
    await response.write_eof()
    return True


def _in_turn(upstreams: Sequence[str]) -> Iterator[str]:
    first = next(_turn) % len(upstreams)
    return iter((*upstreams[first:], *upstreams[:first]))
