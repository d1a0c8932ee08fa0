"""HTTP content encodings, in both directions, never expanding beyond a limit."""

import gzip
import io
import zlib
from collections.abc import Callable

import lz4.frame
import zstandard

GZIP, ZLIB = 31, 15


class EncodingError(Exception):
    """The body is not what its Content-Encoding says."""


class UnknownEncodingError(Exception):
    """No such Content-Encoding here."""


class TooLargeError(Exception):
    """The body, or what it expands to, is larger than the limit."""


def decompress(encoding: str, data: bytes, limit: int) -> bytes:
    """The plain body, at most `limit` bytes. Several compressed frames, one after the other, are one body."""
    try:
        expand = _EXPAND[encoding]
    except KeyError:
        raise UnknownEncodingError(encoding) from None
    try:
        plain = expand(data, limit)
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:  # lz4 raises RuntimeError
        raise EncodingError(f"the body is not {encoding}: {error}") from error
    if len(plain) > limit:
        raise TooLargeError
    return plain


def compress(encoding: str, data: bytes) -> bytes:
    """The body in one of SUPPORTED encodings, fast rather than small."""
    return _SHRINK[encoding](data)


def _frames(new: Callable[[], "zlib._Decompress | lz4.frame.LZ4FrameDecompressor"]) -> Callable[[bytes, int], bytes]:
    def expand(data: bytes, limit: int) -> bytes:
        plain = bytearray()
        while data:
            frame = new()
            plain += frame.decompress(data, limit + 1 - len(plain))
            if len(plain) > limit:
                break
            if not frame.eof:
                raise EOFError("it is cut off")
            data = frame.unused_data or b""
        return bytes(plain)

    return expand


def _zstd(data: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
        return reader.read(limit + 1)


_EXPAND: dict[str, Callable[[bytes, int], bytes]] = {
    "": lambda data, _: data,
    "identity": lambda data, _: data,
    "gzip": _frames(lambda: zlib.decompressobj(GZIP)),
    "deflate": _frames(lambda: zlib.decompressobj(ZLIB)),
    "lz4": _frames(lz4.frame.LZ4FrameDecompressor),
    "zstd": _zstd,
}
_SHRINK: dict[str, Callable[[bytes], bytes]] = {
    "lz4": lambda data: bytes(lz4.frame.compress(data)),
    "zstd": lambda data: zstandard.ZstdCompressor(1).compress(data),
    "gzip": lambda data: gzip.compress(data, 1),
    "deflate": lambda data: zlib.compress(data, 1),
}
SUPPORTED = tuple(_SHRINK)
