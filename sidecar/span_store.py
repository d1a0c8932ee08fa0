"""Where spans wait for the collector: on disk, or in memory while the disk takes none.

Invariants: what is on disk is older than what is in memory, so that both together are one queue; memory is left for
the disk as soon as that works again; `put` never raises, and what it cannot keep is counted.
"""

import logging
import time
from pathlib import Path

from sidecar.span_queue import QueuedBatch, SpanQueue
from sidecar.spool import Spool, SpoolFullError
from sidecar.spool_segment import Batch

log = logging.getLogger(__name__)

AnyBatch = Batch | QueuedBatch


class SpanStore:
    """One queue out of a spool and a bounded memory."""

    def __init__(self, directory: Path, *, spool_bytes: int, memory_bytes: int) -> None:
        self.spool = Spool(directory, limit_bytes=spool_bytes)
        self.memory = SpanQueue(memory_bytes)
        self.disk_problem: str | None = None
        """Why spans wait in memory; None while the disk takes them."""
        self.dropped_spool_full = 0
        self.dropped_memory_full = 0
        self._try_next = False
        """Nothing waits in memory any more: the next span tries the disk."""

    def open(self) -> None:
        """Take what earlier processes left. Without a disk that works it begins in memory."""
        try:
            self.spool.open()
        except OSError as error:
            self._disk_fails(error)
        self.adopt()

    def adopt(self) -> None:
        """Take over what processes left that have died since."""
        try:
            self.spool.adopt()
        except OSError as error:
            log.warning("spool cannot look for what dead processes left error=%s", error)

    def close(self) -> int:
        """Leave to disk what is in memory and to the next start what is on disk: how many spans are lost."""
        self.memory.give_back()
        self._move(None)
        self.dropped_memory_full += len(self.memory)
        self.spool.close()
        return len(self.memory)

    @property
    def is_empty(self) -> bool:
        """Whether everything was acknowledged."""
        return not self.memory.size and not self.spool.waiting_bytes

    @property
    def unread_bytes(self) -> int:
        """What no batch was made of."""
        return self.memory.unread_bytes + self.spool.unread_bytes

    @property
    def oldest_s(self) -> float:
        """The age of the oldest span that is not acknowledged; 0 when there is none."""
        times = [at for at in (self.spool.oldest_ns(), self.memory.oldest_ns) if at is not None]
        return max(0.0, (time.time_ns() - min(times)) / 1e9) if times else 0.0

    def put(self, record: bytes) -> bool:
        """Keep one encoded span. False, and counted, when there is no room."""
        if self.disk_problem is None or self._try_next:
            try:
                self.spool.append(record)
            except SpoolFullError:
                self.dropped_spool_full += 1
                return False
            except OSError as error:
                self._disk_fails(error)
            else:
                if self._try_next:
                    self._disk_works()
                return True
        if self.memory.put(record, time.time_ns()):
            return True
        self.dropped_memory_full += 1
        return False

    async def take(self, limit: int) -> AnyBatch | None:
        """The next batch of at most `limit` bytes, or of one span. Raises OSError when reading may work later."""
        return await self.spool.take(limit) or self.memory.take(limit)

    def acknowledge(self, batch: AnyBatch) -> None:
        """The collector is done with it."""
        if isinstance(batch, QueuedBatch):
            self.memory.acknowledge(batch)
        else:
            self.spool.acknowledge(batch)

    def try_disk(self, limit: int) -> bool:
        """Move about `limit` bytes from memory to disk, where it did not work: whether there is more that may."""
        if self.disk_problem is None:
            return False
        try:
            self.spool.open()
        except OSError as error:
            self._disk_fails(error)
            return False
        return self._move(limit)

    def _move(self, limit: int | None) -> bool:
        moved = 0
        while (record := self.memory.first()) is not None:
            if limit is not None and moved >= limit:
                return True
            try:
                self.spool.append(record)
            except SpoolFullError:
                return False
            except OSError as error:
                self._disk_fails(error)
                return False
            self.memory.pop()
            moved += len(record)
        if moved:
            self._disk_works()
        else:
            self._try_next = True
        return False

    def _disk_fails(self, error: OSError) -> None:
        if self.disk_problem is None:
            log.error("spool cannot be written, spans wait in memory error=%s", error)
        self.disk_problem, self._try_next = error.strerror or str(error), False

    def _disk_works(self) -> None:
        log.info("spool takes spans again")
        self.disk_problem, self._try_next = None, False
