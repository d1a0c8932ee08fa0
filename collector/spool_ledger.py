"""Which requests of the spool are done, which are begun, and which are in doubt.

Invariants: progress goes in order, so a batch is forgotten only when all before it are done too; what may be in the
store and is not done is in doubt for the next process, in the same batches.
"""

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from collector.spool_batch import Batch
from collector.spool_cursor import MAX_BEGUN, Cursor, Position, Progress, after
from collector.spool_segment import Segment

log = logging.getLogger(__name__)


class Ledger:
    """Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._cursor = Cursor(path)
        self._progress = self._cursor.before or Progress()
        self._open: deque[Batch] = deque()
        """Read and not done, in order; damaged stretches among them, finished from the start."""

    @property
    def done(self) -> Position:
        """Up to where all is done."""
        return self._progress.done

    @property
    def doubt(self) -> Position:
        """From where on nothing is in the store."""
        return self._progress.doubt

    @property
    def oldest(self) -> Batch | None:
        """The first batch that was read and is not done."""
        return self._open[0] if self._open else None

    def inherit(self, end: Position, *, sync: bool) -> None:
        """Earlier processes left what is not done up to `end`. Raises OSError."""
        if not self._cursor.trusted:
            self._progress = replace(self._progress, doubt=max(end, self._progress.doubt))
        self._cursor.write(self._progress)
        if sync:
            self._cursor.sync()

    def start(self, segment: Segment) -> int:
        """Where what is not done begins in a segment that is not done."""
        return self.done.offset if segment.number == self.done.segment else 0

    def stop(self, segment: Segment, at: Position, limit_bytes: int) -> tuple[int, int]:
        """Where the batch that begins at `at` ends at the latest, and its limit."""
        begun = [end.offset for end in self._progress.begun if end > at and end.segment == segment.number]
        if begun:
            stop = min(begun[0], segment.end)
            return stop, stop - at.offset
        in_doubt = self.doubt > at and self.doubt.segment == segment.number
        return min(self.doubt.offset, segment.end) if in_doubt else segment.end, limit_bytes

    def in_doubt_bytes(self, segments: Iterable[Segment]) -> int:
        """Of those that are not done."""
        return sum(
            max(0, (self.doubt.offset if segment.number == self.doubt.segment else segment.end) - self.start(segment))
            for segment in segments
            if segment.number <= self.doubt.segment
        )

    def read(self, batch: Batch) -> None:
        """It follows those that were read before."""
        self._open.append(batch)

    def begin(self, batch: Batch) -> None:
        """From now on the store may have some of it. Raises OSError: then nothing has changed."""
        begun = tuple(sorted({*self._progress.begun, batch.end}))
        if len(begun) > MAX_BEGUN:
            raise ValueError(f"more than {MAX_BEGUN} batches are begun and not done")
        progress = replace(self._progress, begun=begun, doubt=max(batch.end, self.doubt))
        if progress != self._progress:
            self._cursor.write(progress)
            self._progress = progress

    def finish(self, batch: Batch) -> list[Batch]:
        """`batch` is done; those that are so together with all before them."""
        batch.finished = True
        finished = []
        while self._open and self._open[0].finished:
            finished.append(self._open.popleft())
            self._progress = after(self._progress, finished[-1].end)
        if finished:
            try:
                self._cursor.write(self._progress)
            except OSError as error:  # at worst it is compared with what the store has after a restart
                log.warning("spool cannot note progress file=%s error=%s", self._path, error)
        return finished

    def close(self, *, sync: bool) -> None:
        """An orderly end: the next process can trust this."""
        try:
            self._cursor.write(self._progress, closed=True)
            if sync:
                self._cursor.sync()
        except OSError as error:
            log.warning("spool cannot note progress file=%s error=%s", self._path, error)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the file."""
        self._cursor.close()
