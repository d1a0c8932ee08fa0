"""Encoded spans on disk, oldest first, from the moment they are put until the collector has acknowledged them.

Invariants: a record is in the page cache when `append` returns, so killing the process loses nothing; the files hold at
most `limit_bytes`, apart from one that waits to be written over and those set aside; nothing found on disk, however
damaged, is an error: what is whole is delivered, the rest is set aside, counted and logged. Used on the event loop;
what may take long (old files are read, checked and deleted) happens in threads.
"""

import asyncio
import bisect
import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from sidecar.journal_recovery import recover
from sidecar.spool_aside import set_aside, set_headless_aside
from sidecar.spool_segment import HEAD, START, SUFFIX, Batch, DamagedError, Scan, Segment
from sidecar.spool_slot import Slot, abandoned_slots, take_slot

log = logging.getLogger(__name__)

SEGMENT_BYTES = 4 << 20
PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""Errors of reading that say nothing about the file."""


class SpoolFullError(Exception):
    """The record would exceed the limit."""


class Spool:
    """The files of one slot, and those taken over from dead processes. `torn` counts damaged stretches."""

    def __init__(self, root: Path, *, limit_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.torn = 0
        self.adopted = 0
        """Records that earlier processes left to this one."""
        self.recovered = 0
        """Those among them whose process died before their version was proved."""
        self.used_bytes = 0
        self.promised_bytes = 0
        """Kept free for records that will come."""
        self._root = root
        self._limit_bytes = limit_bytes
        # An acknowledged file leaves only when the next one is begun: it must not fill the spool on its own.
        self._segment_bytes = min(segment_bytes, limit_bytes // 4)
        self._slot: Slot | None = None
        self._segments: list[Segment] = []
        self._current: Segment | None = None
        self._previous: Segment | None = None
        """The one written before `_current`: its rest is read like the current one's."""
        self._spare: Segment | None = None
        self._scanned: tuple[Segment, Scan, int] | None = None
        """An old file that is being delivered, and the number of its next record."""
        self._garbage: set[Path] = set()
        """Files that are being deleted."""
        self._written = False
        """Something was written since the last `sync`."""
        self._unsynced: list[Segment] = []

    def open(self) -> None:
        """Take a slot, and what is in it. Raises OSError; may be tried again."""
        if self._slot is None:
            slot = take_slot(self._root)
            try:
                self._inherit(slot, slot.directory)
            except OSError:
                slot.release()
                raise
            self._slot = slot

    def close(self) -> None:
        """Let go of the slot; what is not acknowledged stays in it."""
        for segment in [one for one in self._segments if one.is_done]:
            self._segments.remove(segment)
            segment.close()
            self._garbage.add(segment.path)
        if self._spare is not None:
            self._garbage.add(self._spare.path)
        for path in self._garbage:
            _delete(path)
        for segment in self._segments:
            segment.close()
        if self._slot is not None:
            self._slot.release()
        self._slot = None

    @property
    def directory(self) -> Path | None:
        """What is ours alone; None before `open`."""
        return self._slot.directory if self._slot is not None else None

    @property
    def waiting_bytes(self) -> int:
        """What is not acknowledged yet."""
        return sum(segment.waiting_bytes for segment in self._segments)

    @property
    def unread_bytes(self) -> int:
        """What no batch was made of."""
        return sum(segment.end - segment.read for segment in self._segments)

    def oldest_ns(self) -> int | None:
        """When the oldest record was put that is not acknowledged; None without any."""
        for segment in self._segments:
            if segment.waiting_bytes:
                try:
                    return segment.oldest_ns()
                except OSError:
                    return segment.begun_ns
        return None

    def has_room(self, size: int) -> bool:
        """Whether the limit allows for so many bytes more."""
        return self.used_bytes + self.promised_bytes + size <= self._limit_bytes

    def append(self, record: bytes) -> None:
        """Write one record, which is not empty. Raises SpoolFullError, and OSError when the disk does not take it."""
        needed = HEAD + len(record)
        if not self.has_room(needed):
            raise SpoolFullError
        segment = self._current
        if segment is None or (segment.end + needed > self._segment_bytes and segment.end > START):
            segment = self._next()
        try:
            self.used_bytes += segment.append(record)
        except OSError:
            self._seal()  # the trouble may be this file's
            raise
        self._written = True

    def _seal(self) -> None:
        """Nothing more is written to the current file."""
        sealed, self._current = self._current, None
        if sealed is None:
            return
        if self._previous is not None:
            self._previous.close()
        self._previous = sealed
        self._unsynced.append(sealed)
        self._retire_if_done(sealed)

    def _next(self) -> Segment:
        """Begin a file."""
        if self._slot is None:
            raise OSError(errno.ENOENT, "the spool has no directory yet")
        self._seal()
        spare, self._spare = self._spare, None
        segment = self._current = Segment.create(self._slot.directory, spare)
        self._segments.append(segment)
        self.used_bytes += segment.end
        return segment

    async def take(self, limit: int) -> Batch | None:
        """The next batch of at most `limit` bytes, or of one record; None when there is none. One caller at a time.

        Raises OSError when reading fails for reasons that will pass.
        """
        while True:
            if self._scanned is not None:
                segment, scan, number = self._scanned
                if number < len(scan.extents):
                    batch, number = segment.take_scanned(scan, number, limit)
                    self._scanned = segment, scan, number
                    return batch
                self._scanned = None
                self._retire_if_done(segment)
            following = next((one for one in self._segments if not one.is_read), None)
            if following is None:
                return None
            try:
                if following is self._current or following is self._previous:
                    return following.take_written(limit)
                self._scanned = following, await self._scan(following), 0
            except OSError as error:
                if error.errno in PASSING:
                    raise
                self._give_up(following, error)

    async def _scan(self, segment: Segment) -> Scan:
        scan = await asyncio.to_thread(segment.scan)
        end = scan.extents[-1][1] if scan.extents else segment.read
        self.used_bytes -= segment.end - end
        segment.end = end
        if segment.inherited:
            self.adopted += len(scan.extents)
        if scan.damaged:
            segment.damaged = True
            self.torn += scan.damaged
            log.error(
                "spool damaged file=%s stretches=%d whole=%d: the rest is set aside",
                segment.path,
                scan.damaged,
                len(scan.extents),
            )
        return scan

    def _give_up(self, segment: Segment, error: OSError) -> None:
        """Nothing more can be read from it."""
        log.error("spool unreadable file=%s error=%s: the rest is set aside", segment.path, error)
        self.torn += 1
        if segment is self._current:
            self._seal()
        self.used_bytes -= segment.end - segment.read
        segment.end, segment.damaged = segment.read, True
        self._retire_if_done(segment)

    def acknowledge(self, batch: Batch) -> None:
        """The collector is done with it."""
        segment = batch.segment
        try:
            segment.acknowledge(batch)
        except OSError as error:
            log.warning("spool cannot note what was sent, a restart sends it again error=%s", error)
        self._retire_if_done(segment)

    def _retire_if_done(self, segment: Segment) -> None:
        in_use = segment is self._current or (self._scanned is not None and self._scanned[0] is segment)
        if in_use or not segment.is_done or segment not in self._segments:
            return
        self._segments.remove(segment)
        self.used_bytes -= segment.end
        segment.close()
        if segment.damaged:
            set_aside(segment.path, self._root)
        elif self._spare is None and not segment.inherited and segment.end <= self._segment_bytes:
            self._spare = segment
        else:
            # Freeing the pages of a file takes half a millisecond.
            self._garbage.add(segment.path)
            deleting = asyncio.get_running_loop().run_in_executor(None, _delete, segment.path)
            deleting.add_done_callback(lambda _: self._garbage.discard(segment.path))

    def adopt(self) -> None:
        """Take over what dead processes left, oldest first, as far as there is room. Raises OSError."""
        if self._slot is None:
            return
        for slot in abandoned_slots(self._root):
            self._inherit(slot, self._slot.directory)

    def _inherit(self, slot: Slot, home: Path) -> None:
        recovered = recover(slot.directory, self._root)
        self.recovered += recovered.spans
        self.torn += recovered.torn
        found = sorted(slot.directory.glob(f"*{SUFFIX}"))
        taken = 0
        for path in found:
            try:
                segment = Segment.inherit(path)
                if slot.directory != home:
                    if self.used_bytes + segment.end > self._limit_bytes:
                        break
                    segment.path = path.rename(home / path.name)
            except DamagedError:
                self.torn += set_headless_aside(path, self._root)
            except OSError as error:
                log.warning("spool cannot take over file=%s error=%s", path, error)
            else:
                bisect.insort(self._segments, segment, key=lambda one: one.path.name)
                self.used_bytes += segment.end
                taken += segment.waiting_bytes
        if taken:
            log.info("spool takes over what an earlier process left slot=%s bytes=%d", slot.directory.name, taken)

    async def sync(self) -> None:
        """Have all that was written so far survive a loss of power. Raises OSError."""
        written = [one for one in (*self._unsynced, self._current) if one is not None and one in self._segments]
        self._unsynced.clear()
        if self._slot is not None and self._written:
            self._written = False
            copies = [os.dup(segment.opened()) for segment in written]
            await asyncio.to_thread(_sync, copies, self._slot.directory)


def _sync(files: Sequence[int], directory: Path) -> None:
    try:
        for file in files:
            os.fdatasync(file)
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    finally:
        for file in files:
            os.close(file)


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("spool cannot delete file=%s error=%s", path, error)
