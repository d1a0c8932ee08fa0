"""ClickHouse's own compression, `compress=1` and `decompress=1`: a body is frames, each checked and compressed alone.

A frame is CityHash128 (of version 1.0.2) of the rest, a byte for the method, the sizes of the rest and of the plain
bytes in 32 bits each, and the compressed bytes. Numbers are little-endian.
"""

import struct
from collections.abc import Iterator
from typing import IO

import lz4.block
import zstandard
from clickhouse_cityhash.cityhash import CityHash128

from collector.compression import EncodingError

NONE, LZ4, ZSTD = 0x02, 0x82, 0x90
CHECKSUM_BYTES = 16
_HEAD = struct.Struct("<BII")
FRAME_BYTES = 1 << 20
"""Plain bytes of a frame that we make, as ClickHouse does."""
MAX_FRAME_BYTES = 128 << 20


def frames(data: bytes, method: int = LZ4) -> bytes:
    """`data` as frames; none for no data."""
    return b"".join(_frame(data[at : at + FRAME_BYTES], method) for at in range(0, len(data), FRAME_BYTES))


def plain(body: IO[bytes], limit: int = MAX_FRAME_BYTES) -> Iterator[bytes]:
    """The plain bytes of each frame, none larger than `limit`. Raises EncodingError."""
    while checksum := body.read(CHECKSUM_BYTES):
        head = body.read(_HEAD.size)
        if len(checksum) < CHECKSUM_BYTES or len(head) < _HEAD.size:
            raise EncodingError("the last compressed frame is cut off")
        method, size, plain_size = _HEAD.unpack(head)
        if not _HEAD.size <= size <= limit or plain_size > limit:
            raise EncodingError(f"a compressed frame says that it has {size} bytes, {plain_size} decompressed")
        compressed = body.read(size - _HEAD.size)
        if len(compressed) < size - _HEAD.size:
            raise EncodingError("the last compressed frame is cut off")
        if _checksum(head + compressed) != checksum:
            raise EncodingError("the checksum of a compressed frame does not match: the data is damaged")
        yield _expand(method, compressed, plain_size)


def _frame(data: bytes, method: int) -> bytes:
    compressed = data
    if method == LZ4:
        compressed = lz4.block.compress(data, store_size=False)
    elif method == ZSTD:
        compressed = zstandard.ZstdCompressor(1).compress(data)
    rest = _HEAD.pack(method, _HEAD.size + len(compressed), len(data)) + compressed
    return _checksum(rest) + rest


def _expand(method: int, compressed: bytes, size: int) -> bytes:
    try:
        if method == LZ4:
            data: bytes = lz4.block.decompress(compressed, uncompressed_size=size)
        elif method == ZSTD:
            data = zstandard.ZstdDecompressor().decompress(compressed, max_output_size=size) if size else b""
        elif method == NONE:
            data = compressed
        else:
            raise EncodingError(f"compression method {method:#04x} is not known: use LZ4 or ZSTD")
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError) as error:
        raise EncodingError(f"a compressed frame is damaged: {error}") from error
    if len(data) != size:
        raise EncodingError(f"a compressed frame has {len(data)} bytes instead of {size}")
    return data


def _checksum(rest: bytes) -> bytes:
    value: int = CityHash128(rest)
    # The package returns the low half first.
    return (value >> 64).to_bytes(8, "little") + (value & (1 << 64) - 1).to_bytes(8, "little")
