"""The files of a spool: the one that is written, those that wait, and one that is kept to be written over.

Invariants: files are numbered in the order in which they are begun, and what is appended goes to the last. Only the one
that is written and those that must still be synced are open here: who reads has a descriptor of its own. A file leaves
when all of it is done, and may be written over from then on.
"""

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from collector.spool_cursor import NOWHERE, Position
from collector.spool_segment import Segment

log = logging.getLogger(__name__)


class Files:
    """Not thread-safe. `syncs`: whether what is written is to be synced. `end`: up to where requests were appended."""

    def __init__(self, directory: Path, segment_bytes: int, *, syncs: bool) -> None:
        self.end = NOWHERE
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._syncs = syncs
        self._waiting: deque[Segment] = deque()
        self._number = 0
        self._current: Segment | None = None
        self._unsynced: set[Segment] = set()
        self._directory_changed = False
        self._spare = directory / "spare"
        self._has_spare = self._spare.is_file()

    def __iter__(self) -> Iterator[Segment]:
        """Those that are not done, oldest first."""
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def inherit(self, segments: list[Segment], number: int, end: Position) -> None:
        """Earlier processes left these, and appended up to `end`. What comes now has numbers above `number`."""
        self._waiting.extend(segments)
        self._number, self.end = number, end

    def append(self, bodies: Sequence[bytes], size: int, now_ns: int) -> list[Position]:
        """Write requests, which take `size` bytes: where the first begins, and where each ends.

        Raises OSError, and none is in.
        """
        segment = self._current
        if segment is None or (segment.end + size > self._segment_bytes and segment.end):
            segment = self._next()
        places = [Position(segment.number, at) for at in (segment.end, *segment.append(bodies, now_ns))]
        self.end = places[-1]
        if self._syncs:
            self._unsynced.add(segment)
        return places

    def _next(self) -> Segment:
        self.seal()
        spare, self._has_spare = self._has_spare, False
        segment = Segment.create(self._directory, self._number + 1, self._spare if spare else None)
        self._number = segment.number
        self._waiting.append(segment)
        self._current = segment
        self._directory_changed = self._syncs
        return segment

    def seal(self) -> None:
        """Nothing more is appended to the file that is written."""
        segment, self._current = self._current, None
        if segment is None:
            return
        try:
            segment.cut(segment.end)
        except OSError as error:
            log.warning("spool cannot cut file=%s error=%s", segment.path, error)
        if segment not in self._unsynced:
            segment.close()

    def after(self, place: Position) -> Segment | None:
        """The file that holds what comes next after `place`; None when nothing does."""
        for segment in self._waiting:
            at = place.offset if segment.number == place.segment else 0
            if segment.number >= place.segment and segment.end > at:
                return segment
        return None

    def unsynced(self) -> list[int]:
        """Descriptors, to be synced and closed, of all that was written since this was asked. Raises OSError."""
        files: list[int] = []
        try:
            for segment in self._unsynced:
                files.append(os.dup(segment.opened()))
            if self._directory_changed:
                files.append(os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            for file in files:
                os.close(file)
            raise
        for segment in self._unsynced - {self._current}:
            segment.close()
        self._unsynced.clear()
        self._directory_changed = False
        return files

    def give_up(self, segment: Segment) -> None:
        """It cannot be read: nothing more is appended to it."""
        if segment is self._current:
            self._current = None
        self._unsynced.discard(segment)
        segment.close()

    def release(self, done: Position) -> list[Segment]:
        """Let the files go of which all is before `done`; those that are to be discarded."""
        garbage = []
        while self._waiting and (first := self._waiting[0]) is not self._current:
            if first.end and Position(first.number, first.end) > done:
                break
            self._waiting.popleft()
            self._unsynced.discard(first)
            first.close()
            if not self._becomes_spare(first):
                garbage.append(first)
        return garbage

    def _becomes_spare(self, segment: Segment) -> bool:
        """Keep the file to be written over, if it is of use and none is kept."""
        if self._has_spare or not self._segment_bytes // 2 <= segment.size <= 2 * self._segment_bytes:
            return False
        try:
            segment.path.rename(self._spare)
        except OSError:
            return False
        self._has_spare = True
        return True

    def close(self, done: Position) -> None:
        """Let go of all; what is not before `done` stays on the disk, synced."""
        self.seal()
        try:
            for segment in self._unsynced:
                os.fsync(segment.opened())
        except OSError as error:
            log.warning("spool cannot sync directory=%s error=%s", self._directory, error)
        for segment in self.release(done):
            discard(segment)
        for segment in self._waiting:
            segment.close()
        self._spare.unlink(missing_ok=True)


def discard(segment: Segment) -> None:
    """Delete the file; one that cannot be deleted goes at the next start."""
    segment.close()
    try:
        segment.path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("spool cannot delete file=%s error=%s", segment.path, error)
