"""What an answer is compressed with on its way out: an HTTP content encoding, ClickHouse's own frames, both or nothing.

Each piece is sent on at once, so a client sees rows as they come.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import lz4.frame
import zstandard

from collector import clickhouse_frames

GZIP, ZLIB = 31, 15
DEFAULT_LEVEL = 3
"""ClickHouse's, of `http_zlib_compression_level`."""


class Encoder(Protocol):
    """Bytes in, bytes out. An encoder serves one answer."""

    def encode(self, data: bytes) -> bytes:
        """The next bytes to send, which hold all of `data`."""
        ...

    def end(self) -> bytes:
        """What closes the stream."""
        ...


@dataclass(frozen=True)
class Encoding:
    """`content` None: no Content-Encoding. `framed`: ClickHouse's own frames inside."""

    content: str | None
    framed: bool
    level: int = DEFAULT_LEVEL

    def encoder(self) -> Encoder:
        """A new one for an answer."""
        return _Encoder(_COMPRESSORS[self.content](self.level) if self.content else None, framed=self.framed)

    def whole(self, data: bytes) -> bytes:
        """A complete answer."""
        encoder = self.encoder()
        return encoder.encode(data) + encoder.end()


PLAIN = Encoding(None, framed=False)


def chosen(parameters: Mapping[str, str], accept: str) -> Encoding:
    """What a request asks for. As in ClickHouse, `enable_http_compression=0` keeps it from a content encoding."""
    content = None
    if parameters.get("enable_http_compression", "1") != "0":
        content = next((name for name in _acceptable(accept) if name in _COMPRESSORS), None)
    level = parameters.get("http_zlib_compression_level", "")
    chosen_level = min(max(int(level), 1), 9) if level.isdecimal() else DEFAULT_LEVEL
    return Encoding(content, framed=parameters.get("compress") == "1", level=chosen_level)


class _Encoder:
    def __init__(self, compressor: "_Compressor | None", *, framed: bool) -> None:
        self._compressor = compressor
        self._framed = framed

    def encode(self, data: bytes) -> bytes:
        if self._framed:
            data = clickhouse_frames.frames(data)
        return data if self._compressor is None else self._compressor.add(data)

    def end(self) -> bytes:
        return b"" if self._compressor is None else self._compressor.end()


class _Compressor(Protocol):
    def add(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


class _Zlib:
    def __init__(self, level: int, window: int) -> None:
        self._stream = zlib.compressobj(level, zlib.DEFLATED, window)

    def add(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._stream.flush()


class _Zstd:
    def __init__(self) -> None:
        self._stream = zstandard.ZstdCompressor(1).compressobj()

    def add(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)

    def end(self) -> bytes:
        return self._stream.flush()


class _Lz4:
    def __init__(self) -> None:
        self._stream = lz4.frame.LZ4FrameCompressor(auto_flush=True)
        self._head = self._stream.begin()

    def add(self, data: bytes) -> bytes:
        head, self._head = self._head, b""
        return bytes(head + self._stream.compress(data))

    def end(self) -> bytes:
        return bytes(self._head + self._stream.flush())


_COMPRESSORS: dict[str, Callable[[int], _Compressor]] = {
    "lz4": lambda _: _Lz4(),
    "zstd": lambda _: _Zstd(),
    "gzip": lambda level: _Zlib(level, GZIP),
    "deflate": lambda level: _Zlib(level, ZLIB),
}


def _acceptable(accept: str) -> list[str]:
    """The encodings of an Accept-Encoding header, in its order, without those that it refuses."""
    names = []
    for choice in accept.lower().split(","):
        name, _, quality = choice.partition(";")
        if quality.replace(" ", "") not in ("q=0", "q=0.0"):
            names.append(name.strip())
    return names
