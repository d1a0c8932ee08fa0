"""Brings what is spooled into the store: one thread for each signal, batch after batch, each until it has it.

Invariants: a batch leaves the spool only when all of its rows are in the store, once, or what the store refuses for
ever was set aside and counted. No fault of the store costs a row: the thread tries again until it is told to stop, and
what is left then waits in the spool for the next collector.

Rows have ids that follow from where their request is in the spool. A batch that the store may have in part (the process
was killed, an insert failed) is taken out by these ids and put in whole. So everything that views make of rows may see
a row twice: they keep only what the same row twice does not change.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from collector import metrics
from collector.nested import MalformedError, flattened
from collector.rows import Rows, split
from collector.signals import METRICS, Signal
from collector.spool import Spool
from collector.spool_batch import Batch
from collector.spool_segment import Record
from collector.store import Store, StoreError

log = logging.getLogger(__name__)

BATCH_BYTES = 48 << 20
GATHER_S: Final = 0.02
INTERVAL_S = 0.2
"""An insert costs tens of milliseconds before its first row, so they begin so far apart, unless a batch is full."""
IDLE_S = 0.5
SLOW_PATH_S = 30.0
"""How long requests are decoded first after a nested value: who sends one sends more, and a refusal is dear."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.2, 10.0


class Stopping(Exception):  # noqa: N818 - not an error
    """The thread was told to stop while a batch was open."""


@dataclass(frozen=True)
class _Readable:
    """A request of the spool, the same with values that the engine reads, and the number of its first row."""

    record: Record
    plain: bytes
    number: int


class Delivery:
    """The thread of one signal, from `start` to `stop`. `wake` may be called from any thread."""

    def __init__(self, store: Store, signal: Signal, spool: Spool) -> None:
        self.problem: str | None = None
        """Why the store takes nothing at the moment; None when it does."""
        self._store = store
        self._signal = signal
        self._spool = spool
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._decode_until = 0.0
        self._thread = threading.Thread(target=self._run, name=f"deliver-{signal.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Something was appended."""
        self._wake.set()

    def stop(self, within_s: float) -> None:
        """Deliver what is waiting, for at most about `within_s`; the rest stays in the spool. Blocks."""
        deadline = time.monotonic() + within_s
        while self.problem is None and self._thread.is_alive() and time.monotonic() < deadline:
            if not self._spool.figures().waiting_bytes:
                break
            self._wake.set()
            time.sleep(0.02)
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        began = 0.0
        while not self._stop.is_set():
            self._gather(began)
            began = time.monotonic()
            try:
                batch = self._spool.read(BATCH_BYTES)
                if batch is None:
                    self._wake.wait(IDLE_S)
                    continue
                self._deliver(batch)
            except Stopping:
                return
            except Exception as error:
                # Whatever it is, nothing behind this batch may be lost with the thread.
                log.exception("delivery broke signal=%s", self._signal.name)
                self._pause(LONGEST_RETRY_S, str(error))

    def _gather(self, began: float) -> None:
        """Wait for more, unless there is enough for a batch."""
        self._wake.clear()
        until = max(began + INTERVAL_S, time.monotonic() + GATHER_S)
        while (left := until - time.monotonic()) > 0 and self._spool.figures().waiting_bytes < BATCH_BYTES:
            if self._stop.wait(min(left, GATHER_S)):
                return

    def _deliver(self, batch: Batch) -> None:
        """Until the store has it. Raises Stopping."""
        wait_s, in_doubt = FIRST_RETRY_S, batch.in_doubt
        while True:
            try:
                self._spool.begin(batch)
                if in_doubt:
                    self._take_out(batch)
                in_doubt = True
                began = time.monotonic()
                stored = self._insert(batch)
            except (StoreError, OSError) as error:
                metrics.INSERTS.add(self._signal.name, "failed")
                metrics.RETRIES.add(self._signal.name)
                log.warning("insert failed, trying again signal=%s error=%.500s", self._signal.name, str(error))
                self._pause(wait_s, str(error))
                wait_s = min(wait_s * 2, LONGEST_RETRY_S)
            else:
                break
        metrics.INSERTS.add(self._signal.name, "done")
        metrics.INSERT_SECONDS.observe(time.monotonic() - began, self._signal.name)
        metrics.ROWS.add(self._signal.name, amount=stored)
        self._spool.done(batch)
        self.problem = None

    def _pause(self, seconds: float, problem: str) -> None:
        self.problem = problem
        if self._stop.wait(seconds):
            raise Stopping

    def _take_out(self, batch: Batch) -> None:
        """Make sure that no row of it is in the store, or comes there yet. Raises StoreError."""
        while self._store.is_running(batch.name):
            self._pause(FIRST_RETRY_S, f"an insert of {self._signal.name} is still at work")
        among = f"WHERE IngestId >= {batch.numbers[0]} AND IngestId < {batch.end_number}"
        for table in self._signal.targets:
            if count := self._store.delete(f"otel.{table}", among):
                log.info("rows in doubt taken out table=%s count=%d batch=%s", table, count, batch.name)

    def _insert(self, batch: Batch) -> int:
        """All of a batch that the store takes at all; how many rows. Raises StoreError where it may yet take more."""
        if self._signal is not METRICS and time.monotonic() >= self._decode_until:
            rows = Rows(batch.records, batch.numbers)
            try:
                self._put(rows, batch.name)
            except StoreError as error:
                if error.retryable:
                    raise
                log.debug("fast insert refused signal=%s error=%s", self._signal.name, error)
                self._take_out(batch)
            else:
                return rows.count
        readable = list(self._readable(batch))
        rows = Rows([one.plain for one in readable], [one.number for one in readable])
        try:
            self._put(rows, batch.name)
        except StoreError as error:
            if error.retryable:
                raise
            self._take_out(batch)
            return self._insert_apart(batch.name, readable)
        return rows.count

    def _readable(self, batch: Batch) -> Iterator["_Readable"]:
        for record, number in zip(batch.records, batch.numbers, strict=True):
            body = bytes(record)
            try:
                plain = flattened(self._signal, body)
            except MalformedError as error:
                self._refuse(record, str(error))
                continue
            if plain is not body:
                self._decode_until = time.monotonic() + SLOW_PATH_S
            yield _Readable(record, plain, number)

    def _insert_apart(self, name: str, readable: list["_Readable"]) -> int:
        """What the store takes of each request: one row that it refuses must not cost the others."""
        stored = 0
        for one in readable:
            rows = split(b"".join(Rows([one.plain], [one.number])))
            refused = self._insert_halves(name, rows)
            if refused:
                self._refuse(one.record, f"{len(refused)} of {len(rows)} records refused: {refused[0]}")
            stored += len(rows) - len(refused)
        return stored

    def _insert_halves(self, name: str, rows: list[bytes]) -> list[str]:
        """Why the store refuses which rows, found by halving."""
        if not rows:
            return []
        try:
            self._put(rows, name)
        except StoreError as error:
            if error.retryable:
                raise
            if len(rows) == 1:
                return [str(error)]
            middle = len(rows) // 2
            return self._insert_halves(name, rows[:middle]) + self._insert_halves(name, rows[middle:])
        return []

    def _put(self, rows: Iterable[bytes], name: str) -> None:
        self._store.insert(self._signal, rows, name)

    def _refuse(self, record: Record, reason: str) -> None:
        self._spool.reject(record, reason)
        log.error("request refused by the store, set aside signal=%s reason=%.500s", self._signal.name, reason)
