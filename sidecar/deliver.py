"""An engine's answer on its way to the client: read for the record, and shown as the client would have got it alone."""

import asyncio
from dataclasses import dataclass, replace

import orjson
from aiohttp import web

from sidecar.call import Call
from sidecar.chat_answer import INCOMPLETE, Answer
from sidecar.chat_request import Hidden
from sidecar.decoded_reply import DecodedReply, EncodingError, decoded
from sidecar.dialect import Dialect, Exchange, Json, Native, NativeStream, Refusal
from sidecar.failures import DIED, INVALID_ANSWER, TIMEOUT, answered, error_message, note_refusal
from sidecar.forward import Inbound, identity_headers, response_headers
from sidecar.policy import Replica
from sidecar.sse import Event, EventReader, EventTooLargeError
from sidecar.translation import Translation
from tracegrad.http_client import BrokenError, HttpError, Reply

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


async def deliver(
    inbound: Inbound, call: Call, replica: Replica, upstream: Reply, capture: Capture
) -> web.StreamResponse:
    """Give the client its answer; notes in `call` what it says. Raises BrokenError where a whole answer breaks off."""
    call.status = upstream.status
    try:
        plain = decoded(upstream)
        if plain.status == 200 and plain.content_type == "text/event-stream":
            return await _deliver_stream(inbound, call, replica, plain, capture)
        body = await plain.read()
    except EncodingError as error:
        call.status = 502
        call.fail(INVALID_ANSWER, f"the answer of upstream at {replica.url}: {error}")
        return capture.dialect.error(Refusal(502, call.error_message, INVALID_ANSWER))
    if plain.status >= 400:
        return _refused(call, plain, capture, body)
    try:
        call.answer, shown = capture.native.read(body, capture.hidden)
    except ValueError:
        call.fail(INVALID_ANSWER, f"the answer of upstream at {replica.url} is not a JSON object")
        if capture.exchange is not None:
            return capture.dialect.error(Refusal(502, call.error_message, INVALID_ANSWER))
        return _response(plain, body, changed=False)
    if not call.answer.choices:
        call.fail(INVALID_ANSWER, f"the answer of upstream at {replica.url} holds no choice")
    if call.continuation is not None:
        call.continuation.answered(call.answer)
    call.answer = _as_seen(call.answer, capture)
    if capture.exchange is not None:
        shown = orjson.dumps(capture.exchange.answer(orjson.loads(shown)))
        await capture.exchange.settle()
    return _response(plain, shown, changed=shown is not body)


def _as_seen(answer: Answer, capture: Capture) -> Answer:
    """An answer with the id that its client knows."""
    if capture.exchange is None or answer.id is None:
        return answer
    return replace(answer, id=capture.exchange.seen_id(answer.id))


def _refused(call: Call, upstream: Reply | DecodedReply, capture: Capture, body: bytes) -> web.Response:
    message = error_message(body, answered(call.upstream, upstream.status, upstream.reason))
    call.fail(str(upstream.status), message)
    if capture.exchange is None:
        return _response(upstream, body, changed=False)
    kept = {name: value for name, value in upstream.headers.items() if name.lower() == "retry-after"}
    return capture.dialect.error(Refusal(upstream.status, message, headers=kept))


def _response(upstream: Reply | DecodedReply, body: bytes, *, changed: bool) -> web.Response:
    headers = response_headers(upstream.headers, changed=changed)
    return web.Response(status=upstream.status, reason=upstream.reason, body=body, headers=headers)


async def _deliver_stream(
    inbound: Inbound,
    call: Call,
    replica: Replica,
    upstream: Reply | DecodedReply,
    capture: Capture,
) -> web.StreamResponse:
    headers = response_headers(upstream.headers, changed=True)
    headers.update(identity_headers(call))
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    stream, reader = capture.native.stream(capture.hidden), EventReader()
    stream.held.mark = replica.traits.stream_mark
    client = Translation(stream, capture.exchange.writer()) if capture.exchange is not None else stream
    try:
        await response.prepare(inbound.request)
        while received := await upstream.next():
            ready = b"".join([client.pass_on(event) for event in reader.feed(received)])
            if stream.done and call.continuation is not None and call.continuation.waits:
                call.continuation.answered(stream.answer())
            if stream.done and capture.exchange is not None:
                await capture.exchange.settle()
            if ready:
                await response.write(ready)
        if reader.rest:
            ready = client.pass_on(Event.last(reader.rest))
            if capture.exchange is not None:
                await capture.exchange.settle()
            await response.write(ready)
        replica.traits.streamed(stream.held.told)
        if not stream.done and stream.error is None:
            raise BrokenError("the stream ended before [DONE]")
    except (HttpError, EncodingError, EventTooLargeError) as error:
        replica.doubt()
        message = f"upstream at {replica.url} died in the middle of its answer: {error}"
        call.fail(DIED, message)
        await response.write(client.flush() + _error_event(client, capture, message, DIED))
    except asyncio.CancelledError:
        if not inbound.timed_out or not response.prepared:
            raise
        late = inbound.too_late
        note_refusal(call, late)
        event = _error_event(client, capture, late.message, late.code or TIMEOUT)
        await inbound.end_late(response, client.flush() + event)
        return response
    finally:
        call.answer = _as_seen(stream.answer(), capture)
        call.delivered = stream.done
        _note_flaws(call, stream)
    await response.write_eof()
    return response


def _note_flaws(call: Call, stream: NativeStream) -> None:
    """What is wrong with what the engine sent, though its client may not have waited for the end."""
    if stream.error is not None:
        call.fail("upstream_error", stream.error)
    elif stream.done and stream.garbled:
        message = f"the stream of upstream at {call.upstream} holds data that is not a JSON object"
        call.fail(INVALID_ANSWER, message, INCOMPLETE)
    elif stream.done and not call.answer.choices:
        call.fail(INVALID_ANSWER, f"the stream of upstream at {call.upstream} holds no choice")


def _error_event(client: NativeStream | Translation, capture: Capture, message: str, code: str) -> bytes:
    if isinstance(client, Translation):
        return client.writer.error(message, code)
    return capture.dialect.error_event(message, code)
