"""One file of the spool: a header, then records one after another, then zeros or the end of the file.

Invariants: a record counts only if its checksum holds, so what a crash or a bad disk left half-written is recognised;
every file has a seed of its own that the checksums begin with, so a file can be written over (which costs a third of
writing a new one) without the old records ever being taken for new ones. The header keeps up to where the collector
has acknowledged. A record's time is not in its checksum: it shows in a gauge and nowhere else.
"""

import contextlib
import errno
import logging
import os
import secrets
import struct
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

SUFFIX = ".segment"
MAGIC = b"TGSPOOL1"
_HEADER = struct.Struct("<8sIIqq")
"""Magic, seed, nothing, when it was begun (ns), up to where it is acknowledged."""
_ACKNOWLEDGED = struct.Struct("<q")
_ACKNOWLEDGED_AT = _HEADER.size - _ACKNOWLEDGED.size
MARK = b"\xf5\xc1TG"
"""Begins every record. Not text in UTF-8, so records, which are mostly text, hardly ever hold it."""
RECORD_HEAD = struct.Struct("<4sIIq")
"""Mark, checksum, length, when it was put (ns)."""
START, HEAD = _HEADER.size, RECORD_HEAD.size
END = bytes(len(MARK))


class DamagedError(Exception):
    """The file is not a segment."""


@dataclass(eq=False)
class Batch:
    """Records of one segment that follow one another; `end` is where the next one begins."""

    segment: "Segment"
    records: list[memoryview]
    size: int
    end: int
    done: bool = False


@dataclass(frozen=True)
class Scan:
    """What a file holds: where each whole record's content lies, and how many stretches between them are damaged."""

    data: memoryview
    extents: list[tuple[int, int]]
    damaged: int


@dataclass(eq=False)
class Segment:
    """One file, opened when needed. Not thread-safe, except `scan`."""

    path: Path
    seed: int
    begun_ns: int
    end: int
    """Where the next record goes; in a file of another process the end of the file, until it is scanned."""
    acknowledged: int = START
    read: int = START
    """Up to where batches were made of it."""
    inherited: bool = False
    """Another process wrote it."""
    damaged: bool = False
    fd: int = -1
    open_batches: "deque[Batch]" = field(default_factory=deque)
    """Made, and not acknowledged yet."""

    @staticmethod
    def create(directory: Path, spare: "Segment | None" = None) -> "Segment":
        """A new file, or `spare` made one. Raises OSError."""
        seed, now = secrets.randbits(32), time.time_ns()
        path = directory / f"{now:020d}-{seed:08x}{SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(path if spare is None else spare.path, flags, 0o600)
        try:
            _write(fd, (_HEADER.pack(MAGIC, seed, 0, now, START), END), 0)
            if spare is not None:
                spare.path.rename(path)
        except OSError:
            os.close(fd)
            (path if spare is None else spare.path).unlink(missing_ok=True)
            raise
        return Segment(path, seed, now, START, fd=fd)

    @staticmethod
    def inherit(path: Path) -> "Segment":
        """What an earlier process left. Raises OSError, and DamagedError when it has no header of a segment."""
        with path.open("rb") as file:
            head, size = file.read(START), os.fstat(file.fileno()).st_size
        if len(head) < START:
            raise DamagedError
        magic, seed, _, begun_ns, acknowledged = _HEADER.unpack(head)
        if magic != MAGIC or not START <= acknowledged <= max(size, START):
            raise DamagedError
        return Segment(path, seed, begun_ns, max(size, START), acknowledged, acknowledged, inherited=True)

    @property
    def is_read(self) -> bool:
        """Whether there is nothing in it that no batch was made of."""
        return self.read >= self.end

    @property
    def is_done(self) -> bool:
        """Whether all of it is acknowledged."""
        return self.is_read and not self.open_batches

    @property
    def waiting_bytes(self) -> int:
        """What the collector has not acknowledged; of an inherited file, that is not read yet, at most so much."""
        return self.end - self.acknowledged

    def append(self, record: bytes) -> int:
        """Write one record; the bytes it took. Raises OSError, and then the file is as before."""
        head = RECORD_HEAD.pack(MARK, zlib.crc32(record, self.seed), len(record), time.time_ns())
        try:
            _write(self.opened(), (head, record, END), self.end)
        except OSError:
            # What is cut off here would be recognised as damaged anyway: this only saves a false alarm.
            with contextlib.suppress(OSError):
                os.ftruncate(self.opened(), self.end)
            raise
        taken = HEAD + len(record)
        self.end += taken
        return taken

    def take_written(self, limit: int) -> Batch | None:
        """The next batch of at most `limit` bytes, or of one record, straight from the file. Raises OSError."""
        wanted = min(limit + HEAD, self.end - self.read)
        if wanted <= 0:
            return None
        block = os.pread(self.opened(), wanted, self.read)
        length = RECORD_HEAD.unpack_from(block)[2]
        if HEAD + length > len(block):
            block = os.pread(self.opened(), HEAD + length, self.read)
        view, at, records = memoryview(block), 0, []
        while at + HEAD <= len(block):
            mark, _, length, _ = RECORD_HEAD.unpack_from(block, at)
            if mark != MARK:
                raise OSError(errno.EIO, f"no record at {self.read + at} of {self.path}")
            if at + HEAD + length > len(block):
                break
            records.append(view[at + HEAD : at + HEAD + length])
            at += HEAD + length
        if not records:
            raise OSError(errno.EIO, f"{self.path} is shorter than what was written to it")
        return self._batch(records, at, self.read + at)

    def take_scanned(self, scan: Scan, first: int, limit: int) -> tuple[Batch, int]:
        """The batch that begins with the scan's record `first`, and the number of the record after it."""
        records: list[memoryview] = []
        size, end, number = 0, self.read, first
        while number < len(scan.extents):
            start, stop = scan.extents[number]
            if records and size + stop - start > limit:
                break
            records.append(scan.data[start:stop])
            size, end, number = size + stop - start, stop, number + 1
        return self._batch(records, size, end), number

    def _batch(self, records: list[memoryview], size: int, end: int) -> Batch:
        batch = Batch(self, records, size, end)
        self.read = end
        self.open_batches.append(batch)
        return batch

    def acknowledge(self, batch: Batch) -> int:
        """The collector is done with `batch`: the bytes that need not be kept any more. Raises OSError."""
        batch.done = True
        before = self.acknowledged
        while self.open_batches and self.open_batches[0].done:
            self.acknowledged = self.open_batches.popleft().end
        if self.acknowledged != before:
            os.pwrite(self.opened(), _ACKNOWLEDGED.pack(self.acknowledged), _ACKNOWLEDGED_AT)
        return self.acknowledged - before

    def scan(self) -> Scan:
        """Read all that no batch was made of, and check it. Raises OSError. May run in a thread."""
        return scan(self.path.read_bytes(), self.end, self.seed, self.read)

    def oldest_ns(self) -> int:
        """When the oldest record was put that is not acknowledged. Raises OSError."""
        head = os.pread(self.opened(), HEAD, self.acknowledged)
        if len(head) < HEAD or not head.startswith(MARK):
            return self.begun_ns
        return int(RECORD_HEAD.unpack(head)[3])

    def opened(self) -> int:
        """The open file. Raises OSError."""
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self.fd

    def close(self) -> None:
        """Close the file; it may be opened again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _write(fd: int, parts: Sequence[bytes], at: int) -> None:
    """All of it or OSError: files are cut short by a full disk."""
    if os.pwritev(fd, parts, at) != sum(map(len, parts)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def scan(data: bytes, stop: int, seed: int, at: int) -> Scan:
    """The whole records of `data[at:stop]`; after damage it goes on with the next one that is whole."""
    view = memoryview(data)[:stop]
    extents: list[tuple[int, int]] = []
    damaged = 0
    while True:
        while (end := _whole(view, seed, at)) is not None:
            extents.append((at + HEAD, end))
            at = end
        clean = not any(view[at : at + len(END)])
        found = data.find(MARK, at + 1, stop)
        while found >= 0 and _whole(view, seed, found) is None:
            found = data.find(MARK, found + 1, stop)
        damaged += found >= 0 or not clean
        if found < 0:
            return Scan(view, extents, damaged)
        at = found


def _whole(data: memoryview, seed: int, at: int) -> int | None:
    """Where the record at `at` ends; None when none that is whole begins there."""
    if at + HEAD > len(data):
        return None
    mark, checksum, length, _ = RECORD_HEAD.unpack_from(data, at)
    stop = int(at + HEAD + length)
    if mark != MARK or stop > len(data) or zlib.crc32(data[at + HEAD : stop], seed) != checksum:
        return None
    return stop
