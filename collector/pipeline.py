"""From an OTLP request to rows: for each signal its spool, what fills it, and what empties it into the store."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from collector import metrics
from collector.delivery import Delivery
from collector.directory_lock import hold
from collector.ingest import Ingest
from collector.signals import SIGNALS, Signal
from collector.spool import Spool
from collector.spool_aside import Losses
from collector.store import Store
from tracegrad.errors import TracegradError
from tracegrad.settings import CollectorSettings, Fsync

log = logging.getLogger(__name__)

DELIVERED_POLL_S = 0.02
DELIVER_S = 5.0
"""How long a collector that stops goes on delivering; what is left waits in the spool."""
KEEP_FREE_BYTES = 512 << 20
"""Of the disk. More than the embedded engine wants free (engine.xml), so that a full spool can be emptied into it."""


@dataclass(frozen=True)
class _Line:
    signal: Signal
    spool: Spool
    delivery: Delivery


class Pipeline:
    """All signals. Deliveries run from `start` to `stop`; ingests are made on the event loop that serves requests."""

    def __init__(self, lines: list[_Line], fsync: Fsync) -> None:
        self._lines = lines
        self._fsync = fsync

    @property
    def waiting_bytes(self) -> int:
        """Acknowledged and not in the store yet."""
        return sum(line.spool.waiting_bytes for line in self._lines)

    @property
    def problem(self) -> str | None:
        """Why the store takes nothing at the moment, if so. Requests are still taken, as long as the spool has room."""
        return next((line.delivery.problem for line in self._lines if line.delivery.problem), None)

    async def delivered(self, within_s: float) -> bool:
        """Wait until all is in the store that is acknowledged now; False when that takes longer than `within_s`."""
        ends = [line.spool.end for line in self._lines]
        deadline = time.monotonic() + within_s
        while any(line.spool.waits_for(end) for line, end in zip(self._lines, ends, strict=True)):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(DELIVERED_POLL_S)
        return True

    def ingests(self) -> list[Ingest]:
        """What fills the spools. On the event loop; to be closed before the pipeline stops."""
        return [Ingest(line.signal, line.spool, self._fsync, line.delivery.wake) for line in self._lines]

    def start(self) -> None:
        """Begin to deliver, with what earlier processes left."""
        for line in self._lines:
            line.delivery.start()

    async def stop(self) -> None:
        """Deliver what is waiting, if it does not take long, and end the threads."""
        await asyncio.gather(*(asyncio.to_thread(line.delivery.stop, DELIVER_S) for line in self._lines))
        if self.waiting_bytes:
            log.info("spool keeps what the store does not have yet bytes=%d", self.waiting_bytes)


@contextmanager
def pipeline(chosen: CollectorSettings, store: Store) -> Iterator[Pipeline]:
    """The pipeline into `store`, until the end of the block. Raises TracegradError where its spool cannot be used."""
    lines: list[_Line] = []
    directory = chosen.spool_directory
    with hold(directory, "the spool", "--data"):
        try:
            for signal in SIGNALS:
                spool = _spool(directory / signal.name, chosen)
                lines.append(_Line(signal, spool, Delivery(store, signal, spool)))
                _show(signal, spool)
            yield Pipeline(lines, chosen.spool_fsync)
        finally:
            for line in lines:
                with closing(line.spool):
                    pass


def _spool(directory: Path, chosen: CollectorSettings) -> Spool:
    try:
        return Spool(
            directory,
            max_bytes=chosen.spool_bytes,
            fsync=chosen.spool_fsync,
            keep_free_bytes=KEEP_FREE_BYTES,
        )
    except OSError as error:
        raise TracegradError(
            f"cannot keep the spool in {directory}: {error.strerror or error}; choose another --data"
        ) from error


def _show(signal: Signal, spool: Spool) -> None:
    metrics.SPOOL_BYTES.read(lambda: spool.waiting_bytes, signal.name)
    metrics.SPOOL_SEGMENTS.read(lambda: spool.figures().segments, signal.name)
    metrics.SPOOL_OLDEST.read(lambda: spool.figures().oldest_age_s, signal.name)
    for kind in fields(Losses):
        metrics.SPOOL_LOSSES.read(
            lambda kind=kind: getattr(spool.figures().losses, kind.name),  # type: ignore[misc]
            signal.name,
            kind.name,
        )
