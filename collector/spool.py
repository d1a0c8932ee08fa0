"""Requests on disk, oldest first, from the moment they are appended until the store has them.

Invariants: a request is in the page cache when `append` returns, so killing the process loses nothing, and on disk when
a later `sync` returns; requests are read in the order in which they were appended; what is not in doubt is surely not
in the store; nothing found on disk, however damaged, is an error: what is whole is delivered, the rest is set aside,
counted and logged. Methods may be called from any thread; only one thread at a time reads.
"""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collector.spool_aside import Aside
from collector.spool_batch import Batch, Figures, SpoolFullError
from collector.spool_cache import Cache, Held
from collector.spool_cursor import Position
from collector.spool_files import Files, discard
from collector.spool_ledger import Ledger
from collector.spool_recovery import recover
from collector.spool_segment import HEAD, Reader, Record, Segment
from tracegrad.settings import Fsync

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
CACHE_BYTES = 32 << 20
ASIDE_BYTES = 256 << 20
_SEGMENT_BITS = -1 << 31
"""Of a request's numbers: the rest tells places in the segment apart."""
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""Errors of reading that say nothing about the file."""


class Spool:
    """The requests of one signal in a directory of its own, which no other process may have open.

    At most `max_bytes` wait; the disk holds up to two segments more, and what is set aside. Nothing is appended while
    less than `keep_free_bytes` of the disk are free: the store needs room to take what waits.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        fsync: Fsync = "interval",
        segment_bytes: int = SEGMENT_BYTES,
        cache_bytes: int = CACHE_BYTES,
        keep_free_bytes: int = 0,
    ) -> None:
        """Take what is there. Raises OSError when the directory cannot be used."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self.max_bytes = max_bytes
        self._keep_free_bytes = keep_free_bytes
        self._fsync = fsync
        self._aside = Aside(directory, ASIDE_BYTES)
        self._lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self._cache = Cache(cache_bytes)
        self._files = Files(directory, min(segment_bytes, max(max_bytes // 4, HEAD)), syncs=fsync != "off")
        self._waiting_records = 0
        self._closed = False
        self._ledger = Ledger(directory / "cursor")
        try:
            self._inherit()
        except BaseException:
            self._ledger.abandon()
            raise

    def _inherit(self) -> None:
        ledger = self._ledger
        left = recover(self._directory, ledger.done, self._aside)
        self._inherited = max(left.highest, ledger.doubt.segment, ledger.done.segment)
        self._read = ledger.done
        last = left.segments[-1] if left.segments else None
        end = Position(last.number, last.end) if last else self._read
        self._files.inherit(left.segments, self._inherited, end)
        ledger.inherit(end, sync=self._fsync != "off")
        self._waiting_bytes = sum(segment.end - ledger.start(segment) for segment in left.segments)
        if last:
            log.info(
                "spool inherited directory=%s bytes=%d segments=%d in_doubt_bytes=%d",
                self._directory,
                self._waiting_bytes,
                len(left.segments),
                ledger.in_doubt_bytes(left.segments),
            )

    def append(self, bodies: Sequence[bytes]) -> Position:
        """Write requests, all or none; where they end.

        Raises SpoolFullError, and OSError when the disk does not take them.
        """
        size = sum(map(len, bodies)) + HEAD * len(bodies)
        with self._lock:
            if self._waiting_bytes + size > self.max_bytes:
                raise SpoolFullError
            self._check_free(size)
            now = time.time_ns()
            places = self._files.append(bodies, size, now)
            self._cache.add([Held(*held, now) for held in zip(bodies, places, places[1:], strict=False)])
            self._waiting_bytes += size
            self._waiting_records += len(bodies)
            return places[-1]

    def _check_free(self, size: int) -> None:
        if self._keep_free_bytes:
            disk = os.statvfs(self._directory)
            if disk.f_bavail * disk.f_frsize < self._keep_free_bytes + size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> Position:
        """Put on disk what was appended; up to where that is. Takes long: not on the event loop, and one at a time.

        Raises OSError: then what was appended since the last `sync` may not be on disk, and no later one changes that.
        """
        with self._sync_lock:
            with self._lock:
                end, files = self._files.end, self._files.unsynced()
            try:
                for file in files:
                    os.fsync(file)
            except OSError:
                with self._lock:
                    self._files.seal()  # what comes now must not depend on this file
                raise
            finally:
                for file in files:
                    os.close(file)
            return end

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
                stop, limit = self._ledger.stop(segment, start, limit_bytes)
                stop = self._cache.stop(start, stop)
            try:
                with self._reader(segment) as reader:
                    records, end, put_ns = reader.read(start.offset, stop, limit)
                    if not records:
                        end = self._skip(segment, reader, start.offset, stop)
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
        segment = self._files.after(self._read)
        if segment is not None and segment.number != self._read.segment:
            self._read = Position(segment.number, 0)
        return segment

    def _reader(self, segment: Segment) -> Reader:
        with self._lock:
            return segment.reader()

    def _took(self, segment: Segment, end: int, records: Sequence[Record], put_ns: int) -> Batch:
        start, self._read = self._read, Position(segment.number, end)
        name = f"{segment.number}-{segment.seed:016x}-{start.offset}-{end}"
        seed = segment.seed & _SEGMENT_BITS
        batch = Batch(name, records, start, self._read, seed, put_ns, start < self._ledger.doubt)
        self._ledger.read(batch)
        if segment.number <= self._inherited:
            self._waiting_records += len(records)
        return batch

    def _skip(self, segment: Segment, reader: Reader, at: int, stop: int) -> int:
        """Where it goes on after what is no record at `at`."""
        if segment.number <= self._inherited and stop == segment.end and reader.is_rest(at, stop):
            return stop
        end = reader.skip(at, stop)
        with self._lock:
            if at == 0 and end == segment.end:
                self._lose(segment, at, "no whole record is in it")
                return end
        self._aside.stretch(reader, at, end)
        return end

    def _lose(self, segment: Segment, at: int, error: object) -> None:
        with self._lock:
            self._files.give_up(segment)
            self._aside.file(segment.path, segment.end - at, error)

    def begin(self, batch: Batch) -> None:
        """From now on the store may have some of `batch`. Raises OSError: then it must not be stored yet."""
        with self._lock:
            self._ledger.begin(batch)

    def done(self, batch: Batch) -> None:
        """The store has all of `batch`, or `reject` has: it is not kept any more once those before it are done too."""
        with self._lock:
            for finished in self._ledger.finish(batch):
                self._waiting_bytes -= finished.end.offset - finished.start.offset
                self._waiting_records -= len(finished.records)
            garbage = self._files.release(self._ledger.done)
        for segment in garbage:
            discard(segment)

    def reject(self, record: Record, reason: str) -> None:
        """Keep `record` of a batch aside: the store refuses it for ever. Raises OSError: then it is not kept."""
        self._aside.refuse(record, reason)

    @property
    def end(self) -> Position:
        """Up to where requests were appended, by this process or one before it."""
        with self._lock:
            return self._files.end

    @property
    def waiting_bytes(self) -> int:
        """What is not done: `figures` without looking further."""
        with self._lock:
            return self._waiting_bytes

    def waits_for(self, end: Position) -> bool:
        """Whether something before `end` is not done."""
        with self._lock:
            return self._waiting_bytes > 0 and self._ledger.done < end

    def figures(self) -> Figures:
        """What is waiting now, and what was lost."""
        with self._lock:
            return Figures(
                self._waiting_bytes,
                self._waiting_records,
                self._ledger.in_doubt_bytes(self._files),
                self._oldest_age_s(),
                len(self._files),
                replace(self._aside.losses),
            )

    def _oldest_age_s(self) -> float:
        if not self._waiting_bytes:
            return 0.0
        oldest = self._ledger.oldest
        put_ns = oldest.put_ns if oldest else 0
        if not put_ns and (segment := self._unread()):
            with contextlib.suppress(OSError), segment.reader() as reader:
                put_ns = reader.put_ns(self._read.offset)
        return max(0.0, (time.time_ns() - put_ns) / 1e9) if put_ns else 0.0

    def close(self) -> None:
        """Let go of the directory; what is not done stays there. Nothing may read or append any more."""
        with self._sync_lock, self._lock:
            if self._closed:
                return
            self._closed = True
            self._ledger.close(sync=self._fsync != "off")
            self._files.close(self._ledger.done)
