"""Brings what is spooled into the store: one thread for each signal, batch after batch, each until it has it.

Invariants: a batch leaves the spool only when all of its rows are in the store, once, or what the store refuses for
ever was set aside and counted. No fault of the store costs a row: the thread tries again until it is told to stop, and
what is left then waits in the spool for the next collector.

What the engine itself cannot read is decoded here and written anew; what it refuses even so is found by halving.

Rows have ids that follow from where their request is in the spool. A batch that the store may have in part (the process
was killed, an insert failed) is taken out by these ids and put in whole. So everything that views make of rows may see
a row twice: they keep only what the same row twice does not change.
"""

import bisect
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

from collector import metrics
from collector.nested import MalformedError, decoded
from collector.rows import OddError, Piece, pieces
from collector.signals import METRICS, Signal
from collector.spool import Spool
from collector.spool_batch import Batch
from collector.spool_segment import Record
from collector.store import Store, StoreError

log = logging.getLogger(__name__)

BATCH_BYTES = 32 << 20
"""Of requests that are taken from the spool at once."""
INSERT_BYTES, INSERT_ROWS = 32 << 20, 1 << 16
"""Of rows in one insert: each has the whole of its resource, so these may be many times what a batch is."""
GATHER_S: Final = 0.02
INTERVAL_S = 0.2
"""An insert costs tens of milliseconds before its first row, so they begin so far apart, unless a batch is full."""
IDLE_S = 0.5
SLOW_PATH_S = 30.0
"""How long requests are decoded first after a nested value: who sends one sends more, and a refusal is dear."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.2, 10.0


_MEMORY = {173, 241}
"""CANNOT_ALLOCATE_MEMORY, MEMORY_LIMIT_EXCEEDED."""


class Stopping(Exception):  # noqa: N818 - not an error
    """The thread was told to stop while a batch was open."""


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
            if not self._spool.waiting_bytes:
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
            except Exception as error:
                log.exception("spool cannot be read signal=%s", self._signal.name)
                self.problem = str(error)
                self._stop.wait(LONGEST_RETRY_S)
                continue
            if batch is None:
                self.problem = None
                self._wake.wait(IDLE_S)
                continue
            try:
                self._deliver(batch)
            except Stopping:
                return

    def _gather(self, began: float) -> None:
        """Wait for more, unless there is enough for a batch."""
        self._wake.clear()
        until = max(began + INTERVAL_S, time.monotonic() + GATHER_S)
        while (left := until - time.monotonic()) > 0 and self._spool.waiting_bytes < BATCH_BYTES:
            if self._stop.wait(min(left, GATHER_S)):
                return

    def _deliver(self, batch: Batch) -> None:
        """Until the store has it. Raises Stopping."""
        wait_s, in_doubt = FIRST_RETRY_S, batch.in_doubt
        while True:
            try:
                self._spool.begin(batch)
                if in_doubt:
                    self._take_out(batch.name, batch.numbers[0], batch.end_number - 1)
                in_doubt = True
                began = time.monotonic()
                stored = self._insert(batch)
            except (StoreError, OSError) as error:
                log.warning("insert failed, trying again signal=%s error=%.500s", self._signal.name, str(error))
                problem = str(error)
            except Stopping:
                raise
            except Exception as error:
                # Whatever it is, this batch must not be passed over: what is behind it would never be done either.
                log.exception("delivery broke, trying again signal=%s", self._signal.name)
                problem = repr(error)
            else:
                break
            metrics.INSERTS.add(self._signal.name, "failed")
            metrics.RETRIES.add(self._signal.name)
            self._pause(wait_s, problem)
            wait_s = min(wait_s * 2, LONGEST_RETRY_S)
        metrics.INSERTS.add(self._signal.name, "done")
        metrics.INSERT_SECONDS.observe(time.monotonic() - began, self._signal.name)
        metrics.ROWS.add(self._signal.name, amount=stored)
        self._spool.done(batch)
        self.problem = None

    def _pause(self, seconds: float, problem: str) -> None:
        self.problem = problem
        if self._stop.wait(seconds):
            raise Stopping

    def _take_out(self, name: str, first_id: int, last_id: int) -> None:
        """Make sure that no row with such an id is in the store, or comes there yet. Raises StoreError."""
        while self._store.is_running(name):
            self._pause(FIRST_RETRY_S, f"an insert of {self._signal.name} is still at work")
        for table in self._signal.targets:
            if count := self._store.delete(f"otel.{table}", f"WHERE IngestId BETWEEN {first_id} AND {last_id}"):
                log.info("rows in doubt taken out table=%s count=%d batch=%s", table, count, name)

    def _insert(self, batch: Batch) -> int:
        """All of a batch that the store takes at all; how many rows. Raises StoreError where it may yet take more."""
        if self._signal is not METRICS and time.monotonic() >= self._decode_until:
            try:
                return sum(self._put(group, batch.name) for group in grouped(pieces(batch.records, batch.numbers)))
            except (StoreError, OddError) as error:
                if isinstance(error, StoreError) and error.retryable:
                    raise
                log.debug("fast insert refused signal=%s error=%s", self._signal.name, error)
                self._decode_until = time.monotonic() + SLOW_PATH_S
                self._take_out(batch.name, batch.numbers[0], batch.end_number - 1)
        refused: dict[int, list[str]] = {}
        numbers, plain = [], []
        for index, record in enumerate(batch.records):
            try:
                body, is_nested = decoded(self._signal, bytes(record))
            except MalformedError as error:
                refused[index] = [str(error)]
                continue
            if is_nested:
                self._decode_until = time.monotonic() + SLOW_PATH_S
            numbers.append(batch.numbers[index])
            plain.append(body)
        rejected: list[tuple[int, str]] = []
        stored = sum(self._put(group, batch.name, rejected) for group in grouped(pieces(plain, numbers)))
        for row_id, reason in rejected:
            refused.setdefault(bisect.bisect(batch.numbers, row_id) - 1, []).append(reason)
        for index, reasons in refused.items():
            self._refuse(batch.records[index], f"{len(reasons)} of its records: {reasons[0]}")
        return stored

    def _put(self, group: list[Piece], name: str, rejected: list[tuple[int, str]] | None = None) -> int:
        """Insert rows; how many the store took. With `rejected`, those that it refuses for ever are added there.

        Raises StoreError, of rows that it refuses only without `rejected`.
        """
        try:
            self._store.insert(self._signal, (piece.data for piece in group), name)
        except StoreError as error:
            count = sum(piece.count for piece in group)
            # What does not fit the engine's memory may do so in parts, whoever is to blame.
            if error.retryable and (error.code not in _MEMORY or count == 1):
                raise
            if not error.retryable and rejected is None:
                raise
            self._take_out(name, group[0].first_id, group[-1].last_id)
            if count == 1 and rejected is not None:
                rejected.append((group[0].first_id, str(error)))
                return 0
            parts = group if len(group) > 1 else group[0].halves()
            middle = len(parts) // 2
            return self._put(parts[:middle], name, rejected) + self._put(parts[middle:], name, rejected)
        return sum(piece.count for piece in group)

    def _refuse(self, record: Record, reason: str) -> None:
        self._spool.reject(record, reason)
        log.error("request refused by the store, set aside signal=%s reason=%.500s", self._signal.name, reason)


def grouped(rows: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces for one insert each."""
    group: list[Piece] = []
    size = count = 0
    for piece in rows:
        if group and (size + len(piece.data) > INSERT_BYTES or count + piece.count > INSERT_ROWS):
            yield group
            group, size, count = [], 0, 0
        group.append(piece)
        size += len(piece.data)
        count += piece.count
    if group:
        yield group
