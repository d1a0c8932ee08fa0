"""Spans of calls that wait for their engine's word, on disk, so that killing the process does not lose them.

Spans stand in it as they are to be recorded if no word comes: as unproved. A call is settled once its spans were put
into the spool with the true verdict; what a dead process left unsettled, the next one puts there
(`sidecar.journal_recovery`). Two files are written in turn, over and over: deleting one costs half a millisecond.

Invariants: a call is in the page cache when `write` returns its place; all notes of a call stand in the file that it
stands in, and a file is begun anew only when all calls in it are settled; trouble with the disk is no error: both files
go, so that nothing that was settled since can come back, and calls wait in memory alone until the disk works again.
"""

import contextlib
import errno
import logging
import os
import secrets
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.spool_segment import END, HEAD, MARK, RECORD_HEAD

log = logging.getLogger(__name__)

SUFFIX = ".journal"
MAGIC = b"TGJOURN1"
HEADER = struct.Struct("<8sI")
"""Magic, and the seed of the checksums."""
START = HEADER.size
SETTLED = b"\x00"
"""Begins a note of what is settled: then the places of spans follow, four bytes each. No span begins so."""
TURN_BYTES = 1 << 20
"""A file that is longer gives way to the other one."""
RETRY_S = 1.0
MOST_PARTS = 1000
"""More than the kernel takes at once (1024) are joined."""

Span = tuple[bytes, bytes]
"""The encoded span without its verdict, and the verdict as long as nothing is proved."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the spans of one call stand."""

    file: "_File"
    offsets: tuple[int, ...]


class Journal:
    """The two files of one process. `directory` gives None while there is no disk to write to."""

    def __init__(self, directory: Callable[[], Path | None], limit_bytes: int) -> None:
        self.skipped = 0
        """Calls that it did not take: they wait in memory alone."""
        self._directory = directory
        self._limit_bytes = limit_bytes // 2
        self._files: list[_File] = []
        """The first is written."""
        self._problem: str | None = None
        self._retry_at = 0.0

    @property
    def calls(self) -> int:
        """How many stand in it unsettled."""
        return sum(file.unsettled for file in self._files)

    def write(self, calls: Sequence[Sequence[Span]], settled: Iterable[Place]) -> list[Place | None]:
        """Note that some calls are settled, and take others: their places; None where one is not taken."""
        places: list[Place | None] = []
        try:
            self._note(settled)
            places += [self._add(spans) for spans in calls]
            for file in self._files:
                file.flush()
        except OSError as error:
            self._give_up(error)
            places = [None] * len(calls)
        if skipped := places.count(None):
            self.skipped += skipped
        elif places and self._problem is not None:
            log.info("journal is written again")
            self._problem = None
        return places

    def close(self) -> None:
        """Delete the files, when every call is settled."""
        if not self.calls:
            self._delete()

    def _note(self, settled: Iterable[Place]) -> None:
        notes: dict[_File, list[int]] = {}
        for place in settled:
            if place.file in self._files:
                place.file.unsettled -= 1
                notes.setdefault(place.file, []).extend(place.offsets)
        for file, offsets in notes.items():
            if file.unsettled:
                file.add(SETTLED, struct.pack(f"<{len(offsets)}I", *offsets))
            else:
                file.begin()

    def _add(self, spans: Sequence[Span]) -> Place | None:
        file = self._file(sum(HEAD + len(bare) + len(verdict) for bare, verdict in spans))
        if file is None:
            return None
        file.unsettled += 1
        return Place(file, tuple([file.add(*span) for span in spans]))

    def _file(self, size: int) -> "_File | None":
        """The file that takes so many bytes more."""
        if not self._files and not self._create():
            return None
        file, other = self._files
        if file.end + size > min(TURN_BYTES, self._limit_bytes) and not other.unsettled:
            self._files.reverse()
            file = other
        return file if file.end + size <= self._limit_bytes else None

    def _create(self) -> bool:
        if time.monotonic() < self._retry_at or (directory := self._directory()) is None:
            return False
        for number in range(2):
            path = directory / f"{time.time_ns():020d}-{number}{SUFFIX}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._files.append(_File(path, fd))
            self._files[-1].begin()
        return True

    def _give_up(self, error: OSError) -> None:
        if self._problem is None:
            log.error("journal cannot be written, calls wait for their engine in memory alone error=%s", error)
        self._problem = error.strerror or str(error)
        self._retry_at = time.monotonic() + RETRY_S
        self._delete()

    def _delete(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fd, 0)  # should it not go
            os.close(file.fd)
            try:
                file.path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("journal cannot be deleted file=%s error=%s", file.path, error)
        self._files.clear()


@dataclass(eq=False)
class _File:
    """One file: a header, then records as those of a segment of the spool. What is added is written by `flush`."""

    path: Path
    fd: int
    unsettled: int = 0
    """Calls."""
    seed: int = 0
    end: int = START
    _parts: list[bytes] = field(default_factory=list)
    _written: int = 0

    def begin(self) -> None:
        """Forget what it holds: with another seed, old records are none any more."""
        self.seed = secrets.randbits(32)
        self.end, self._parts, self._written = START, [HEADER.pack(MAGIC, self.seed)], 0

    def add(self, first: bytes, second: bytes) -> int:
        """A record out of two parts: where it stands."""
        checksum = zlib.crc32(second, zlib.crc32(first, self.seed))
        length, place = len(first) + len(second), self.end
        self._parts += (RECORD_HEAD.pack(MARK, checksum, length, time.time_ns()), first, second)
        self.end += HEAD + length
        return place

    def flush(self) -> None:
        """Raises OSError."""
        if not self._parts:
            return
        parts = self._parts if len(self._parts) < MOST_PARTS else [b"".join(self._parts)]
        if os.pwritev(self.fd, (*parts, END), self._written) != self.end - self._written + len(END):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._parts, self._written = [], self.end
