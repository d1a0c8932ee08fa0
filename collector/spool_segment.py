"""One file of the spool: records one after another, then zeros or the end of the file.

Invariants: a record counts only if its checksums hold, the one of its head and the one of its body, so what a crash or
a bad disk left half-written is recognised. Every file has a random seed, in its name, that all its checksums begin
with: a file can be written over, which is much cheaper than writing a new one, without an old record ever being taken
for a new one, and nobody who sends records can forge the head of one. A record whose head holds says where the next one
begins.
"""

import contextlib
import errno
import itertools
import os
import re
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from xxhash import xxh3_64_intdigest as checksum

SUFFIX = ".segment"
_NAME = re.compile(r"(\d{16})-([0-9a-f]{16})" + re.escape(SUFFIX))
_CHECKSUM = struct.Struct("<Q")
MARK = b"\xf5\xc1T1"
"""Begins every record. Not text in UTF-8, so records, which are mostly text, hardly ever hold it."""
_RECORD = struct.Struct("<4sIqQ")
"""Mark, length of the body, when it was appended (ns), checksum of the body; the checksum of this follows."""
HEAD = _RECORD.size + _CHECKSUM.size
END = bytes(len(MARK))
_PARTS_AT_ONCE = 1000
"""Of one write: the system takes 1024."""

Record = bytes | memoryview
"""The body of one request."""


@dataclass(frozen=True)
class Head:
    """What precedes a body."""

    length: int
    put_ns: int
    checksum: int


@dataclass(eq=False)
class Segment:
    """One file, opened when needed. Not thread-safe: who reads beside others takes a `reader`."""

    path: Path
    number: int
    seed: int
    end: int
    """Where the next record goes; in a file of an earlier process the end of the file."""
    size: int
    """Of the file, which may be longer than `end` while it is written over."""
    fd: int = -1

    @staticmethod
    def create(directory: Path, number: int, spare: Path | None = None) -> "Segment":
        """A new file, or `spare` made one. Raises OSError; then the spare is gone."""
        seed = secrets.randbits(64)
        path = directory / f"{number:016d}-{seed:016x}{SUFFIX}"
        first = path if spare is None else spare
        fd = os.open(first, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, (END,), 0)
            size = os.fstat(fd).st_size
            if spare is not None:
                spare.rename(path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                first.unlink()
            raise
        return Segment(path, number, seed, 0, size, fd)

    @staticmethod
    def inherit(path: Path) -> "Segment":
        """What an earlier process left. Raises OSError."""
        name, stat = _NAME.fullmatch(path.name), path.lstat()
        if name is None or not S_ISREG(stat.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return Segment(path, int(name[1]), int(name[2], 16), stat.st_size, stat.st_size)

    def append(self, bodies: Sequence[bytes], now_ns: int) -> list[int]:
        """Write the records with as few writes as can be; where each ends. Raises OSError, and none is in."""
        parts: list[bytes] = []
        ends, end = [], self.end
        for body in bodies:
            head = _RECORD.pack(MARK, len(body), now_ns, checksum(body, self.seed))
            parts += (head + _CHECKSUM.pack(checksum(head, self.seed)), body)
            end += HEAD + len(body)
            ends.append(end)
        parts.append(END)
        at = self.end
        try:
            for some in _batched(parts, _PARTS_AT_ONCE):
                at += _write(self.opened(), some, at)
        except OSError:
            # The next append writes over what is in already. Until then it would be recognised as what it is: requests
            # that nobody acknowledged.
            with contextlib.suppress(OSError):
                os.ftruncate(self.opened(), self.end)
                self.size = self.end
            raise
        self.end, self.size = end, max(self.size, at)
        return ends

    def reader(self) -> "Reader":
        """The file to read from, whatever becomes of this one; to be closed. Raises OSError."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        return Reader(self.path, self.seed, os.dup(self.fd) if self.fd >= 0 else os.open(self.path, flags))

    def cut(self, end: int) -> None:
        """Let the file end at `end`. Raises OSError."""
        self.end = end
        if self.size != end:
            os.ftruncate(self.opened(), end)
            self.size = end

    def opened(self) -> int:
        """The open file. Raises OSError."""
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self.fd

    def close(self) -> None:
        """Close the file; it may be opened again."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


@dataclass(frozen=True)
class Reader:
    """The records of a file, through a descriptor of its own: used without the lock, it may run beside anything."""

    path: Path
    seed: int
    fd: int

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, at: int, stop: int, limit: int) -> tuple[list[memoryview], int, int]:
        """Records from `at` on, `limit` bytes at most or one; where the last ends and when the first was appended.

        Without any, what is at `at` is damage or the end. Raises OSError.
        """
        block = os.pread(self.fd, min(limit + HEAD, stop - at), at)
        head = self._head(block, 0)
        if head is None or at + HEAD + head.length > stop:
            return [], at, 0
        if HEAD + head.length > len(block):
            block = os.pread(self.fd, HEAD + head.length, at)
        view, here, records, put_ns = memoryview(block), 0, [], head.put_ns
        while head is not None and here + HEAD + head.length <= len(block):
            body = view[here + HEAD : here + HEAD + head.length]
            if checksum(body, self.seed) != head.checksum:
                break
            records.append(body)
            here += HEAD + head.length
            head = self._head(block, here)
        return records, at + here, put_ns

    def skip(self, at: int, stop: int) -> int:
        """Where the damage at `at` ends: at the next record, or at `stop`. Raises OSError."""
        data = os.pread(self.fd, stop - at, at)
        head = self._head(data, 0)
        if head is not None:
            return min(at + HEAD + head.length, stop)
        found = data.find(MARK, 1)
        while found >= 0 and self._head(data, found) is None:
            found = data.find(MARK, found + 1)
        return stop if found < 0 else at + found

    def is_end(self, at: int) -> bool:
        """Whether the last record ends at `at`, if no other follows. Raises OSError."""
        return not any(os.pread(self.fd, len(END), at))

    def bytes_at(self, at: int, stop: int) -> bytes:
        """What the file holds there. Raises OSError."""
        return os.pread(self.fd, stop - at, at)

    def put_ns(self, at: int) -> int:
        """When the record at `at` was appended; 0 when there is none. Raises OSError."""
        head = self._head(os.pread(self.fd, HEAD, at), 0)
        return 0 if head is None else head.put_ns

    def is_rest(self, at: int, stop: int) -> bool:
        """Whether only what was written over follows, and no record of this file. Raises OSError."""
        return self.is_end(at) and self.skip(at, stop) == stop

    def _head(self, data: bytes, at: int) -> Head | None:
        if at + HEAD > len(data) or not data.startswith(MARK, at):
            return None
        if _CHECKSUM.unpack_from(data, at + _RECORD.size)[0] != checksum(data[at : at + _RECORD.size], self.seed):
            return None
        _, length, put_ns, of_body = _RECORD.unpack_from(data, at)
        return Head(length, put_ns, of_body)


def number_of(path: Path) -> int | None:
    """The number of the segment in the file; None when it has no name of one."""
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else None


def _write(fd: int, parts: Sequence[bytes], at: int) -> int:
    """All of it or OSError: a full disk cuts writes short."""
    size = sum(map(len, parts))
    if os.pwritev(fd, parts, at) != size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return size


def _batched(parts: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    iterator = iter(parts)
    while some := list(itertools.islice(iterator, size)):
        yield some
