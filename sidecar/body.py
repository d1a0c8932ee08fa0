"""A request's body, as far as it is allowed: what declares too much is not read, what becomes too much is dropped."""

import json
from collections.abc import AsyncIterator

import aiohttp
import orjson
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from sidecar.body_encoding import INVALID_BODY, Decoder
from sidecar.dialect import Json, Refusal
from sidecar.gate import too_large

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def declares_too_much(request: web.BaseRequest, limit: float) -> bool:
    """Whether the request says that its body has more than `limit` bytes."""
    return (request.content_length or 0) > limit


async def read_body(request: web.BaseRequest, limit: float) -> bytes:
    """The whole body, decompressed. Raises Refusal (413) before more than `limit` bytes are kept."""
    if declares_too_much(request, limit):
        raise too_large(limit)
    content = request.content
    try:
        if (encoding := request.headers.get(hdrs.CONTENT_ENCODING)) is not None:
            return await _decoded(content, Decoder(encoding), limit)
        received = await content.readany()
        if content.at_eof() and len(received) <= limit:
            return received
        parts, size = [received], len(received)
        while received and size <= limit:
            received = await content.readany()
            size += len(received)
            parts.append(received)
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise Refusal(400, "the request body is not framed as its headers say", INVALID_BODY) from error
    if size > limit:
        raise too_large(limit)
    return b"".join(parts)


async def _decoded(content: aiohttp.StreamReader, decoder: Decoder, limit: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while received := await content.readany():
        part = decoder.feed(received, limit - size)
        size += len(part)
        parts.append(part)
        if size > limit:
            raise too_large(limit)
    decoder.end()
    return b"".join(parts)


def parsed(raw: bytes) -> tuple[Json, Refusal | None]:
    """The JSON object that a body holds, and the refusal where none can be captured with it: for it is bad JSON.

    Of JSON as Python and JavaScript write it, with NaN and halves of characters, what can be read is: the odd values
    are null and U+FFFD here. Of what is no JSON object at all, nothing is.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return _leniently(raw), Refusal(400, f"the request body is not JSON: {error}", "invalid_json")
    if isinstance(body, dict):
        return body, None
    return {}, Refusal(400, "the request body is not a JSON object", "invalid_json")


def _leniently(raw: bytes) -> Json:
    try:
        body = json.loads(raw, parse_constant=lambda _: None)
        text = json.dumps(body, ensure_ascii=False)
        body = orjson.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def with_model(raw: bytes, named: Json) -> bytes:
    """A body that only `_leniently` reads, with another `model`: its odd values stay as odd as they were."""
    return json.dumps({**json.loads(raw), **named}).encode()


class StreamedBody:
    """A body that is passed on as it comes. `refusal` says, after sending it failed, that it was too large."""

    def __init__(self, request: web.BaseRequest, limit: float) -> None:
        self.refusal: Refusal | None = None
        self._request = request
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._request.content.iter_any():
            size += len(part)
            if size > self._limit:
                self.refusal = too_large(self._limit)
                raise self.refusal
            yield part


async def invite_body(request: web.BaseRequest, limit: float) -> None:
    """Answer `Expect: 100-continue`, unless the body will be refused: then its client need not send it."""
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        raise web.HTTPExpectationFailed(text="the only expectation that is met is 100-continue")
    if not declares_too_much(request, limit):
        await request.writer.write(CONTINUE)
        # What is written before the status line is none of the answer's length.
        request.writer.output_size = 0
