"""`Content-Encoding` of a model call's body, undone under the same limit as a plain body. Of others it is kept."""

import zlib

from sidecar.dialect import Refusal

INVALID_BODY, UNKNOWN_ENCODING = "invalid_body", "unsupported_content_encoding"
_GZIP, _ZLIB, _RAW = 31, 15, -15
"""As zlib's `wbits` has them."""


class Decoder:
    """Decompresses one body, piece by piece. Raises Refusal (415) for an encoding that is not known here."""

    def __init__(self, encoding: str) -> None:
        self._name = encoding.strip().lower()
        if self._name not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            message = f"Content-Encoding {self._name[:40]!r} is not known here: send the body plain, or as gzip"
            raise Refusal(415, message, UNKNOWN_ENCODING)
        self._plain = self._name in {"", "identity"}
        self._stream: zlib._Decompress | None = None

    def feed(self, data: bytes, room: float) -> bytes:
        """What `data` adds, of which there is more than `room` only by one byte. Raises Refusal (400) for nonsense."""
        if self._plain:
            return data
        parts, size = [], 0
        try:
            while data and size <= room:
                if self._stream is None or self._stream.eof:  # several members may follow each other
                    self._stream = zlib.decompressobj(self._wbits(data[0]))
                part = self._stream.decompress(data, int(min(room - size, 1 << 30)) + 1)
                size += len(part)
                parts.append(part)
                data = self._stream.unconsumed_tail or self._stream.unused_data
        except zlib.error as error:
            raise self._broken(str(error)) from error
        return b"".join(parts)

    def end(self) -> None:
        """The body has ended. Raises Refusal (400) where its compressed data has not."""
        if self._stream is not None and not self._stream.eof:
            raise self._broken("it is not complete")

    def _wbits(self, first: int) -> int:
        if self._name != "deflate":
            return _GZIP
        return _ZLIB if first & 0x0F == 8 else _RAW  # what the name means, and what many send

    def _broken(self, why: str) -> Refusal:
        return Refusal(400, f"the request body is not the {self._name} that Content-Encoding says: {why}", INVALID_BODY)
