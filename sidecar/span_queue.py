"""Spans in memory, while the disk takes none. Bounded; they are lost when the process is killed."""

from collections import deque
from dataclasses import dataclass

from tracegrad.otlp_request import Record


@dataclass(eq=False)
class QueuedBatch:
    """The oldest records of the queue that are in no other batch."""

    records: list[Record]
    size: int
    oldest_ns: int


class SpanQueue:
    """First in, first out. Records leave it when they are acknowledged, or moved to disk."""

    def __init__(self, limit_bytes: int) -> None:
        self.size = 0
        """Bytes in it, those in unacknowledged batches included."""
        self._limit_bytes = limit_bytes
        self._records: deque[tuple[bytes, int]] = deque()
        self._open: list[QueuedBatch] = []

    def __len__(self) -> int:
        """How many records are in it."""
        return len(self._records) + sum(len(batch.records) for batch in self._open)

    @property
    def unread_bytes(self) -> int:
        """Bytes that are in no batch."""
        return self.size - sum(batch.size for batch in self._open)

    @property
    def oldest_ns(self) -> int | None:
        """When its oldest record was put; None when it is empty."""
        return self._open[0].oldest_ns if self._open else self._records[0][1] if self._records else None

    def put(self, record: bytes, now_ns: int) -> bool:
        """Whether there was room."""
        if self.size + len(record) > self._limit_bytes:
            return False
        self._records.append((record, now_ns))
        self.size += len(record)
        return True

    def first(self) -> bytes | None:
        """The oldest record that is in no batch."""
        return self._records[0][0] if self._records else None

    def pop(self) -> None:
        """Forget what `first` gave: it is on disk."""
        self.size -= len(self._records.popleft()[0])

    def take(self, limit: int) -> QueuedBatch | None:
        """The next batch of at most `limit` bytes, or of one record; None when there is none."""
        if not self._records:
            return None
        batch = QueuedBatch([], 0, self._records[0][1])
        while self._records and (not batch.records or batch.size + len(self._records[0][0]) <= limit):
            record, _ = self._records.popleft()
            batch.records.append(record)
            batch.size += len(record)
        self._open.append(batch)
        return batch

    def acknowledge(self, batch: QueuedBatch) -> None:
        """The collector is done with it."""
        self._open.remove(batch)
        self.size -= batch.size

    def give_back(self) -> None:
        """No batch is under way any more: what they hold is first in the queue again."""
        for batch in reversed(self._open):
            self._records.extendleft((bytes(record), batch.oldest_ns) for record in reversed(batch.records))
        self._open.clear()
