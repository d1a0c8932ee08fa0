"""Brings every span to the collector: kept first, on disk, then sent until the collector has acknowledged it.

Invariants: `put` never waits for the network and never raises; a span leaves the disk only after the collector answered
for it; whatever is lost is counted and logged. Spans are sent oldest first, several requests at once. They arrive at
least once: those under way when the process is killed, at most `WINDOW_BYTES`, come twice.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from sidecar.journal import Journal
from sidecar.span_store import AnyBatch, SpanStore
from tracegrad.otlp_access import OtlpAccess
from tracegrad.otlp_client import Delivered, OtlpClient
from tracegrad.otlp_request import TRACES

log = logging.getLogger(__name__)

DELAY_S = 0.08
"""So long a span waits for others, unless they fill a batch before."""
BATCH_BYTES = 256 << 10
"""Of spans in one request: agents wait while one is put together."""
PACE_S = 0.004
"""Between two requests: catching up after a time without a collector must not starve agents."""
WINDOW_BYTES = 16 << 20
"""What may be under way at once. A collector that acknowledges what is on disk takes its time to answer."""
MEMORY_BYTES = 64 << 20
JOURNAL_BYTES = 64 << 20
"""At most; and no more than a quarter of the spool."""
TICK_S = 1.0
ADOPT_TICKS, LOSSES_TICKS = 5, 10
MOVED_AT_ONCE = 1 << 20
"""Bytes that go from memory to disk in one turn of the event loop."""
CLOSE_AWAY_S = 1.0
"""So long the end waits for a collector that is away: what is on disk is safe."""
POLL_S = 0.01


@dataclass
class Counters(Delivered):
    """What became of the spans of one process. `dropped_*` and `torn` are losses."""

    queued: int = 0
    dropped_spool_full: int = 0
    dropped_memory_full: int = 0
    """The disk took none, and the memory for that was full too, or the process ended."""
    torn: int = 0
    """Damaged stretches of files: spans half-written at a crash, and whatever a disk lost."""
    adopted: int = 0
    """Spans that earlier processes had left on disk."""

    @property
    def lost(self) -> int:
        """All losses together."""
        return self.dropped_spool_full + self.dropped_memory_full + self.dropped_refused + self.torn


class Delivery:
    """An async context manager. Leaving it sends what can be sent within `close_timeout_s`; the rest stays on disk.

    `fsync`: about once a second, what was written is made to survive a loss of power too.
    """

    def __init__(
        self,
        endpoint: str,
        service: str,
        directory: Path,
        *,
        spool_bytes: int,
        fsync: bool = False,
        memory_bytes: int = MEMORY_BYTES,
        window_bytes: int = WINDOW_BYTES,
        close_timeout_s: float = 10.0,
        access: OtlpAccess | None = None,
    ) -> None:
        self.store = SpanStore(directory, spool_bytes=spool_bytes, memory_bytes=memory_bytes)
        self.journal = Journal(self._place, min(JOURNAL_BYTES, spool_bytes // 4))
        """Where spans stand until they are put."""
        self._counters = Counters()
        self._client = OtlpClient(endpoint, service, self._counters, access)
        self._fsync = fsync
        self._window_bytes = window_bytes
        self._close_timeout_s = close_timeout_s
        self._fresh_bytes = 0
        """Put since batches were last made."""
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        """There is enough for a batch."""
        self._progress = asyncio.Event()
        """A batch has ended."""
        self._under_way: set[asyncio.Task[None]] = set()
        self._under_way_bytes = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._lost_logged = 0

    @property
    def counters(self) -> Counters:
        """What became of the spans so far."""
        counters, store = self._counters, self.store
        counters.dropped_spool_full, counters.dropped_memory_full = store.dropped_spool_full, store.dropped_memory_full
        counters.torn, counters.adopted = store.spool.torn, store.spool.adopted
        return counters

    async def __aenter__(self) -> "Delivery":
        await self._client.__aenter__()
        self.store.open()
        self._wake.set()
        for run in (self._export, self._keep_house):
            task = asyncio.create_task(run(), name=f"delivery {run.__name__}")
            task.add_done_callback(_report_death)
            self._tasks.append(task)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._finish()
        tasks = [*self._tasks, *self._under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.__aexit__()
        await self._sync()
        waiting = self.store.spool.waiting_bytes
        if lost := self.store.close():
            log.error("spans lost, neither disk nor collector took them count=%d", lost)
        if waiting:
            log.warning("spans wait on disk for the next start bytes=%d", waiting)
        self._log_losses()

    def put(self, record: bytes) -> bool:
        """Take one encoded span. False, and counted, when it is lost."""
        self._counters.queued += 1
        if not self.store.put(record):
            if not self._lost_logged:
                self._log_losses()
            return False
        self._fresh_bytes += len(record)
        if self._fresh_bytes >= BATCH_BYTES:
            self._full.set()
        self._wake.set()
        return True

    def promise(self, size: int) -> bool:
        """Keep so much room on disk for spans that will be put, until `redeem`. False where there is none."""
        spool = self.store.spool
        if self._place() is None or not spool.has_room(size):
            return False
        spool.promised_bytes += size
        return True

    def redeem(self, size: int) -> None:
        """They are put now."""
        self.store.spool.promised_bytes -= size

    def _place(self) -> Path | None:
        """The directory of this process; None while the disk does not work."""
        return self.store.spool.directory if self.store.disk_problem is None else None

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged. False when `timeout_s` passed first."""
        deadline = time.monotonic() + timeout_s
        while not self.store.is_empty:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _finish(self) -> None:
        """Send what can be sent."""
        began = last_there = time.monotonic()
        self._full.set()
        while not self.store.is_empty and (now := time.monotonic()) < began + self._close_timeout_s:
            if not self._client.away:
                last_there = now
            if now > last_there + CLOSE_AWAY_S and not self.store.memory.size:
                return
            await asyncio.sleep(POLL_S)

    async def _export(self) -> None:
        while True:
            await self._wake.wait()
            at_least = BATCH_BYTES
            try:
                async with asyncio.timeout(DELAY_S):
                    await self._full.wait()
            except TimeoutError:
                at_least = 1
            self._wake.clear()
            while self.store.unread_bytes >= at_least and (batch := await self._take()) is not None:
                task = asyncio.create_task(self._deliver(batch))
                self._under_way.add(task)
                self._under_way_bytes += batch.size
                task.add_done_callback(self._ended)
                await asyncio.sleep(PACE_S)
            self._fresh_bytes = self.store.unread_bytes
            self._full.clear()
            if self._fresh_bytes:
                self._wake.set()

    async def _take(self) -> AnyBatch | None:
        """The next batch, once there is room for it under way."""
        while self._under_way and (self._under_way_bytes >= self._window_bytes or self._client.away):
            self._progress.clear()
            await self._progress.wait()
        while True:
            try:
                return await self.store.take(BATCH_BYTES)
            except OSError as error:
                log.warning("spool cannot be read at the moment error=%s", error)
                await asyncio.sleep(TICK_S)

    async def _deliver(self, batch: AnyBatch) -> None:
        try:
            await self._client.deliver(TRACES, batch.records)
        finally:
            self._under_way_bytes -= batch.size
        self.store.acknowledge(batch)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._progress.set()
        _report_death(task)

    async def _keep_house(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            ticks += 1
            more = self.store.try_disk(MOVED_AT_ONCE)
            while more:
                await asyncio.sleep(PACE_S)
                more = self.store.try_disk(MOVED_AT_ONCE)
            await self._sync()
            if ticks % ADOPT_TICKS == 0:
                self.store.adopt()
                self._wake.set()
            if ticks % LOSSES_TICKS == 0:
                self._log_losses()

    async def _sync(self) -> None:
        if self._fsync:
            try:
                await self.store.spool.sync()
            except OSError as error:
                log.warning("spool could not be made to survive a loss of power error=%s", error)

    def _log_losses(self) -> None:
        counters = self.counters
        if counters.lost > self._lost_logged:
            log.error(
                "spans lost so far spool_full=%d memory_full=%d refused=%d torn=%d",
                counters.dropped_spool_full,
                counters.dropped_memory_full,
                counters.dropped_refused,
                counters.torn,
            )
        self._lost_logged = counters.lost


def _report_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("task died, restart the sidecar task=%s", task.get_name(), exc_info=error)
