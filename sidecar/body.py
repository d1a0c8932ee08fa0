"""A request's body, as far as it is allowed: what declares too much is not read, what becomes too much is dropped."""

from collections.abc import AsyncIterator

from aiohttp import hdrs, web

from sidecar.dialect import Refusal
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
    received = await content.readany()
    if content.at_eof() and len(received) <= limit:
        return received
    parts, size = [received], len(received)
    while received and size <= limit:
        received = await content.readany()
        size += len(received)
        parts.append(received)
    if size > limit:
        raise too_large(limit)
    return b"".join(parts)


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
