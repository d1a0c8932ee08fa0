"""The body of a request, which may be larger than memory: in memory up to `MEMORY_BYTES`, in a file on disk beyond.

The files have no name: they are gone with the process, and the engine, in this process, reads them by their number.
"""

import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import lz4.frame
import zstandard
from aiohttp import StreamReader

from collector import clickhouse_frames
from collector.compression import SUPPORTED, EncodingError, TooLargeError, UnknownEncodingError

MEMORY_BYTES = 4 << 20
MAX_BODY_BYTES = 1 << 30
"""Of a body as it comes, and as it is when decompressed."""
PIECE_BYTES = 1 << 18
ZSTD_PIECE_BYTES = 1 << 10
"""Of zstd, which says nothing about how much a piece becomes: at most 32 MB."""


class Body:
    """Bytes that are written once and then read. Use as a context manager, or `close` it."""

    def __init__(self, directory: Path, data: bytes = b"") -> None:
        self._directory = directory
        self._file: IO[bytes] = io.BytesIO()
        self.on_disk = False
        self.size = 0
        self.write(data)

    def write(self, data: bytes) -> None:
        """Add to the end. Raises TooLargeError beyond MAX_BODY_BYTES."""
        self.size += len(data)
        if self.size > MAX_BODY_BYTES:
            raise TooLargeError
        if not self.on_disk and self.size > MEMORY_BYTES:
            held = self._file
            self._file, self.on_disk = tempfile.TemporaryFile(dir=self._directory), True  # noqa: SIM115 - ours to close
            self._file.write(held.getbuffer())  # type: ignore[attr-defined]
        self._file.write(data)

    def read(self, size: int = -1) -> bytes:
        """The first `size` bytes, or all."""
        self._file.seek(0)
        return self._file.read(size)

    def pieces(self) -> Iterator[bytes]:
        """All of it, in pieces that fit into memory."""
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            yield piece

    def decoded(self, encoding: str, *, framed: bool) -> "Body":
        """What is behind its Content-Encoding and, where it is `framed`, behind ClickHouse's own compression.

        Raises UnknownEncodingError, EncodingError or TooLargeError.
        """
        plain = self
        if encoding not in ("", "identity"):
            plain = self._from(_expanded(encoding, self._rewound()))
        if framed:
            plain = self._from(clickhouse_frames.plain(plain._rewound()))
        return plain

    @contextmanager
    def path(self, start: int = 0) -> Iterator[str]:
        """A path under which the engine reads what is from `start` on."""
        if self.on_disk and start == 0:
            self._file.flush()
            yield _number(self._file)
            return
        with _unnamed(self._directory, self.size) as file:
            self._file.seek(start)
            shutil.copyfileobj(self._file, file, PIECE_BYTES)
            file.flush()
            yield _number(file)

    def like(self, data: bytes) -> "Body":
        """A new body that begins with `data`."""
        return Body(self._directory, data)

    def close(self) -> None:
        """Let go of memory and disk."""
        self._file.close()

    def __enter__(self) -> "Body":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rewound(self) -> IO[bytes]:
        self._file.seek(0)
        return self._file

    def _from(self, pieces: Iterator[bytes]) -> "Body":
        body = Body(self._directory)
        for piece in pieces:
            body.write(piece)
        return body


async def receive(content: StreamReader, directory: Path) -> Body:
    """The body of a request, as it comes. Raises TooLargeError."""
    body = Body(directory)
    async for piece in content.iter_chunked(PIECE_BYTES):
        body.write(piece)
    return body


def _number(file: IO[bytes]) -> str:
    return f"/proc/self/fd/{file.fileno()}" if Path("/proc/self/fd").exists() else f"/dev/fd/{file.fileno()}"


def _unnamed(directory: Path, size: int) -> Any:
    if size <= MEMORY_BYTES and hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("insert"), "wb")
    return tempfile.TemporaryFile(dir=directory)


def _expanded(encoding: str, body: IO[bytes]) -> Iterator[bytes]:
    """Piece by piece, so that little that becomes much does not fill the memory."""
    if encoding not in SUPPORTED:
        raise UnknownEncodingError(encoding)
    try:
        if encoding in ("deflate", "zstd"):
            yield from _inflated(body) if encoding == "deflate" else _unzstd(body)
            return
        with _reader(encoding, body) as plain:
            while piece := plain.read(PIECE_BYTES):
                yield piece
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError, OSError) as error:  # lz4 raises RuntimeError
        raise EncodingError(f"the body is not {encoding}: {error}") from error


def _reader(encoding: str, body: IO[bytes]) -> Any:
    return gzip.GzipFile(fileobj=body) if encoding == "gzip" else lz4.frame.open(body, "rb")


def _inflated(body: IO[bytes]) -> Iterator[bytes]:
    expand = zlib.decompressobj()
    for piece in iter(lambda: body.read(PIECE_BYTES), b""):
        yield expand.decompress(piece, PIECE_BYTES)
        while expand.unconsumed_tail:
            yield expand.decompress(expand.unconsumed_tail, PIECE_BYTES)
    if not expand.eof:
        raise EOFError("it is cut off")


def _unzstd(body: IO[bytes]) -> Iterator[bytes]:
    frame = zstandard.ZstdDecompressor().decompressobj()
    for piece in iter(lambda: body.read(ZSTD_PIECE_BYTES), b""):
        rest = piece
        while rest:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(rest)
            rest = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("it is cut off")
