"""An engine's answer that came compressed, although it was asked not to be: read as if it had come plain.

Invariant: what the record reads and what the client gets are the same plain bytes, from which what only we asked for is
taken out. What cannot be decompressed here reaches no client, for it could hold just that.
"""

import math

from multidict import CIMultiDict

from sidecar.body_encoding import Decoder
from sidecar.dialect import Refusal
from tracegrad.http_client import Reply

PLAIN = ("", "identity")


class EncodingError(ValueError):
    """It is in an encoding that is not known here, or not in the one that it claims."""


class DecodedReply:
    """Decompresses a reply as it comes. Raises EncodingError for an encoding that is not known."""

    def __init__(self, upstream: Reply, encoding: str) -> None:
        self._upstream = upstream
        self._encoding = encoding
        try:
            self._decoder = Decoder(encoding)
        except Refusal as refusal:
            raise self._unreadable from refusal
        self.status, self.reason, self.content_type = upstream.status, upstream.reason, upstream.content_type
        self.headers = CIMultiDict(upstream.headers)
        for name in ("content-encoding", "content-length"):
            self.headers.popall(name, None)

    async def read(self) -> bytes:
        """The whole body. Raises BrokenError, EncodingError."""
        return self._decoded(await self._upstream.read()) + self._end()

    async def next(self) -> bytes:
        """Some of the body; empty at its end. Raises BrokenError, EncodingError."""
        while received := await self._upstream.next():
            if decoded := self._decoded(received):
                return decoded
        return self._end()

    @property
    def _unreadable(self) -> EncodingError:
        return EncodingError(f"Content-Encoding {self._encoding[:40]!r} cannot be read: let the engine answer plainly")

    def _decoded(self, received: bytes) -> bytes:
        try:
            return self._decoder.feed(received, math.inf)
        except Refusal as refusal:
            raise self._unreadable from refusal

    def _end(self) -> bytes:
        try:
            self._decoder.end()
        except Refusal as refusal:
            raise self._unreadable from refusal
        return b""


def decoded(upstream: Reply) -> Reply | DecodedReply:
    """The same answer without compression. Raises EncodingError."""
    encoding = upstream.headers.get("content-encoding", "")
    return upstream if encoding.strip().lower() in PLAIN else DecodedReply(upstream, encoding)
