"""Requests on disk, oldest first, from the moment they are appended until the store has them.

Invariants: a request is in the page cache when `append` returns, so killing the process loses nothing, and on disk when
a later `sync` returns; requests are read in the order in which they were appended; what is not in doubt is surely not
in the store; nothing found on disk, however damaged, is an error: what is whole is delivered, the rest is set aside,
counted and logged. Methods may be called from any thread; only one thread at a time reads.
"""

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from collector.spool_aside import Aside, Losses
from collector.spool_cache import Cache, Held
from collector.spool_cursor import MAX_BEGUN, Cursor, Position, Progress, after
from collector.spool_recovery import SPARE, discard, is_rest, recover
from collector.spool_segment import HEAD, START, Record, Segment

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
CACHE_BYTES = 64 << 20
ASIDE_BYTES = 256 << 20
Fsync = Literal["always", "interval", "off"]
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""Errors of reading that say nothing about the file."""


class SpoolFullError(Exception):
    """The requests would exceed the limit: none of them is in."""


@dataclass(eq=False)
class Batch:
    """Requests that follow one another in one segment; never none.

    `name` says which, and nothing else ever has it. `in_doubt`: an earlier process may have stored some or all of them;
    what it had begun is read again as the same batch, unless it is damaged since.
    """

    name: str
    records: Sequence[Record]
    start: Position
    end: Position
    put_ns: int
    """When the first was appended, since the epoch."""
    in_doubt: bool
    finished: bool = False

    @property
    def size(self) -> int:
        """Bytes of the requests, without what surrounds them."""
        return sum(map(len, self.records))


@dataclass(frozen=True)
class Figures:
    """What is waiting is what is not done. `waiting_records` leaves out what earlier processes left and is not read."""

    waiting_bytes: int
    waiting_records: int
    in_doubt_bytes: int
    oldest_age_s: float
    segments: int
    losses: Losses


class Spool:
    """The requests of one signal in a directory of its own, which no other process may have open.

    At most `max_bytes` wait; the disk holds up to two segments more, and what is set aside.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        fsync: Fsync = "interval",
        segment_bytes: int = SEGMENT_BYTES,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Take what is there. Raises OSError when the directory cannot be used."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._max_bytes = max_bytes
        self._fsync = fsync
        self._segment_bytes = min(segment_bytes, max(max_bytes // 4, START + HEAD))
        self._aside = Aside(directory, ASIDE_BYTES)
        self._lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self._cache = Cache(cache_bytes)
        self._spare = directory / SPARE
        self._has_spare = self._spare.is_file()
        self._current: Segment | None = None
        self._open: deque[Batch] = deque()
        """Read and not done, in order; damaged stretches among them, finished from the start."""
        self._waiting_records = 0
        self._unsynced: set[Segment] = set()
        self._directory_changed = False
        self._closed = False
        self._cursor = Cursor(directory / "cursor")
        try:
            self._inherit()
        except BaseException:
            self._cursor.close()
            raise

    def _inherit(self) -> None:
        before = self._cursor.before
        self._progress = before or Progress()
        left = recover(self._directory, self._progress.done, self._aside)
        self._segments = deque(left.segments)
        self._number = self._inherited = max(left.highest, self._progress.done.segment, self._progress.doubt.segment)
        self._read = self._progress.done
        last = Position(left.segments[-1].number, left.segments[-1].end) if left.segments else self._read
        if before is None or not self._cursor.trusted:
            self._progress = replace(self._progress, doubt=max(last, self._progress.done))
        self._waiting_bytes = sum(segment.end - self._start(segment) for segment in self._segments)
        self._cursor.write(self._progress)
        if self._fsync != "off":
            self._cursor.sync()
        if self._segments:
            log.info(
                "spool inherited directory=%s bytes=%d segments=%d in_doubt_bytes=%d",
                self._directory,
                self._waiting_bytes,
                len(self._segments),
                self._in_doubt_bytes(),
            )

    def _start(self, segment: Segment) -> int:
        """Where what is not done begins in it."""
        done = self._progress.done
        return done.offset if segment.number == done.segment else START

    def append(self, bodies: Sequence[bytes]) -> Position:
        """Write requests, all or none; where they end.

        Raises SpoolFullError, and OSError when the disk does not take them.
        """
        size = sum(map(len, bodies)) + HEAD * len(bodies)
        with self._lock:
            if self._waiting_bytes + size > self._max_bytes:
                raise SpoolFullError
            segment = self._current
            if segment is None or (segment.end + size > self._segment_bytes and segment.end > START):
                segment = self._next()
            start, now = segment.end, time.time_ns()
            ends = [Position(segment.number, end) for end in segment.append(bodies, now)]
            starts = (Position(segment.number, start), *ends)
            self._cache.add([Held(*held, now) for held in zip(bodies, starts, ends, strict=False)])
            self._waiting_bytes += size
            self._waiting_records += len(bodies)
            if self._fsync != "off":
                self._unsynced.add(segment)
            return Position(segment.number, segment.end)

    def sync(self) -> Position:
        """Put on disk what was appended; up to where that is. Takes long: not on the event loop, and one at a time.

        Raises OSError: then what was appended since the last `sync` may not be on disk, and no later one changes that.
        """
        with self._sync_lock:
            with self._lock:
                end = Position(self._number, self._current.end if self._current else 0)
                files = [os.dup(segment.opened()) for segment in self._unsynced]
                for segment in self._unsynced - {self._current}:
                    segment.close()
                self._unsynced.clear()
                if self._directory_changed:
                    files.append(os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC))
                    self._directory_changed = False
            try:
                for file in files:
                    os.fsync(file)
            except OSError:
                with self._lock:
                    self._seal()  # what comes now must not depend on this file
                raise
            finally:
                for file in files:
                    os.close(file)
            return end

    def _next(self) -> Segment:
        self._seal()
        spare, self._has_spare = self._has_spare, False
        segment = Segment.create(self._directory, self._number + 1, self._spare if spare else None)
        self._number = segment.number
        self._segments.append(segment)
        self._current = segment
        self._directory_changed = True
        return segment

    def _seal(self) -> None:
        """Nothing more is appended to the current file."""
        segment, self._current = self._current, None
        if segment is None:
            return
        try:
            segment.cut(segment.end)
        except OSError as error:
            log.warning("spool cannot cut file=%s error=%s", segment.path, error)
        if self._fsync == "off":
            segment.close()

    def read(self, limit_bytes: int) -> Batch | None:
        """The next requests, `limit_bytes` at most or one; None when all were read. Raises OSError: try again later."""
        while True:
            with self._lock:
                segment = self._unread()
                if segment is None:
                    return None
                start = self._read
                if held := self._cache.take(start, limit_bytes):
                    return self._took(segment, held[-1].end.offset, [one.body for one in held], held[0].put_ns)
                stop, limit = self._stop(segment, limit_bytes)
            try:
                records, end, put_ns = segment.read(start.offset, stop, limit)
                if not records:
                    end = self._skip(segment, start.offset, stop)
            except OSError as error:
                if error.errno in _PASSING:
                    raise
                self._lose(segment, start.offset, error)
                records, end, put_ns = [], segment.end, 0
            with self._lock:
                batch = self._took(segment, end, records, put_ns)
                if records:
                    return batch
                self.done(batch)

    def _unread(self) -> Segment | None:
        """The segment that is read next, from `_read` on."""
        for segment in self._segments:
            if segment.number > self._read.segment and segment.end > START:
                self._read = Position(segment.number, START)
                return segment
            if segment.number == self._read.segment and segment.end > self._read.offset:
                return segment
        return None

    def _stop(self, segment: Segment, limit_bytes: int) -> tuple[int, int]:
        """Where the batch that is read next ends at the latest, and its limit: what was begun is the same again."""
        progress, at = self._progress, self._read
        begun = [end.offset for end in progress.begun if end > at and end.segment == segment.number]
        if begun:
            stop = min(begun[0], segment.end)
            return stop, stop - at.offset
        in_doubt = progress.doubt > at and progress.doubt.segment == segment.number
        stop = progress.doubt.offset if in_doubt else segment.end
        return self._cache.stop(at, min(stop, segment.end)), limit_bytes

    def _took(self, segment: Segment, end: int, records: Sequence[Record], put_ns: int) -> Batch:
        start, self._read = self._read, Position(segment.number, end)
        name = f"{segment.number}-{segment.seed:016x}-{start.offset}-{end}"
        batch = Batch(name, records, start, self._read, put_ns, start < self._progress.doubt)
        self._open.append(batch)
        if segment.number <= self._inherited:
            self._waiting_records += len(records)
        return batch

    def _skip(self, segment: Segment, at: int, stop: int) -> int:
        """Where it goes on after what is no record at `at`."""
        if stop == segment.end and is_rest(segment, at):
            return stop
        end = segment.skip(at, stop)
        self._aside.stretch(segment, at, end)
        return end

    def _lose(self, segment: Segment, at: int, error: OSError) -> None:
        with self._lock:
            if segment is self._current:
                self._current = None
            self._unsynced.discard(segment)
            segment.close()
            self._aside.file(segment.path, segment.end - at, error)

    def begin(self, batch: Batch) -> None:
        """From now on the store may have some of `batch`. Raises OSError: then it must not be stored yet."""
        with self._lock:
            begun = tuple(sorted({*self._progress.begun, batch.end}))
            if len(begun) > MAX_BEGUN:
                raise ValueError(f"more than {MAX_BEGUN} batches are begun and not done")
            progress = replace(self._progress, begun=begun, doubt=max(batch.end, self._progress.doubt))
            if progress != self._progress:
                self._cursor.write(progress)
                self._progress = progress

    def done(self, batch: Batch) -> None:
        """The store has all of `batch`, or `reject` has: it is not kept any more once those before it are done too."""
        with self._lock:
            batch.finished = True
            while self._open and self._open[0].finished:
                first = self._open.popleft()
                self._progress = after(self._progress, first.end)
                self._waiting_bytes -= first.end.offset - first.start.offset
                self._waiting_records -= len(first.records)
            try:
                self._cursor.write(self._progress)
            except OSError as error:  # at worst it is compared with what the store has after a restart
                log.warning("spool cannot note progress directory=%s error=%s", self._directory, error)
            garbage = [segment for segment in self._finished() if not self._becomes_spare(segment)]
        for segment in garbage:
            discard(segment)

    def reject(self, record: Record, reason: str) -> None:
        """Keep `record` of a batch aside: the store refuses it for ever. Raises OSError: then it is not kept."""
        self._aside.refuse(record, reason)

    def _finished(self) -> list[Segment]:
        """Segments of which nothing is needed any more: they leave the list."""
        finished = []
        while self._segments and self._segments[0] is not self._current:
            first = self._segments[0]
            if first.end > START and Position(first.number, first.end) > self._progress.done:
                break
            finished.append(self._segments.popleft())
            self._unsynced.discard(first)
        return finished

    def _becomes_spare(self, segment: Segment) -> bool:
        """Keep the file to be written over, if it is of use and none is kept."""
        if self._has_spare or not self._segment_bytes // 2 <= segment.size <= 2 * self._segment_bytes:
            return False
        try:
            segment.path.rename(self._spare)
        except OSError:
            return False
        segment.close()
        self._has_spare = True
        return True

    def figures(self) -> Figures:
        """What is waiting now, and what was lost."""
        with self._lock:
            return Figures(
                self._waiting_bytes,
                self._waiting_records,
                self._in_doubt_bytes(),
                self._oldest_age_s(),
                len(self._segments),
                replace(self._aside.losses),
            )

    def _in_doubt_bytes(self) -> int:
        doubt = self._progress.doubt
        return sum(
            max(0, (doubt.offset if segment.number == doubt.segment else segment.end) - self._start(segment))
            for segment in self._segments
            if segment.number <= doubt.segment
        )

    def _oldest_age_s(self) -> float:
        if not self._waiting_bytes:
            return 0.0
        put_ns = self._open[0].put_ns if self._open else 0
        segment = None if put_ns else self._unread()
        if segment is not None:
            try:
                put_ns = segment.put_ns(self._read.offset)
            except OSError:
                put_ns = segment.begun_ns
        return max(0.0, (time.time_ns() - put_ns) / 1e9) if put_ns else 0.0

    def close(self) -> None:
        """Let go of the directory; what is not done stays there. Nothing may read or append any more."""
        with self._sync_lock, self._lock:
            if self._closed:
                return
            self._closed = True
            self._seal()
            try:
                if self._fsync != "off":
                    for segment in self._unsynced:
                        os.fsync(segment.opened())
                self._cursor.write(self._progress, closed=True)
                if self._fsync != "off":
                    self._cursor.sync()
            except OSError as error:
                log.warning("spool cannot be closed well directory=%s error=%s", self._directory, error)
            for segment in self._finished():
                discard(segment)
            for segment in self._segments:
                segment.close()
            self._spare.unlink(missing_ok=True)
            self._cursor.close()
