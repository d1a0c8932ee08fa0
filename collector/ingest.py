"""Group commit: concurrent OTLP requests become one insert, each acknowledged only when it is on disk.

An insert costs tens of milliseconds before its first row, so inserts start at least `INTERVAL_S` apart and take all
that is waiting, up to `BATCH_BYTES`. What waits is bounded: beyond `WAITING_BYTES` a request is refused at once, to
come again. One request that the engine does not take never costs the others more than time.
"""

import asyncio
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from collector.engine import Connection, Engine, EngineError
from collector.nested import MalformedError, flattened
from collector.signals import Signal
from tracegrad.errors import TracegradError

log = logging.getLogger(__name__)

GATHER_S = 0.005
INTERVAL_S = 0.2
BATCH_BYTES = 16 << 20
WAITING_BYTES = 256 << 20
SLOW_PATH_S = 30.0
"""How long requests are decoded first after a nested value: who sends one sends more, and a refusal is dear."""


class UnavailableError(TracegradError):
    """Nothing is wrong with the request, but it is not stored: send it again after `retry_after_s`.

    `full`: there is no room for it; else something does not work at the moment.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0, *, full: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s, self.full = retry_after_s, full


@dataclass(frozen=True)
class _Waiting:
    body: bytes
    stored: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Ingest:
    """Stores the requests of one signal. Made and used on the event loop; the engine works in a thread of its own."""

    def __init__(self, engine: Engine, signal: Signal) -> None:
        self.signal = signal
        self.waiting_bytes = 0
        self._queue: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._writer = Writer(engine.connect(), signal)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"ingest-{signal.name}")
        self._task = asyncio.create_task(self._run(), name=f"ingest-{signal.name}")

    async def store(self, body: bytes) -> None:
        """Return once `body` is on disk. Raises MalformedError or UnavailableError; then nothing of it is stored."""
        if not is_framed(body):
            raise MalformedError(
                f"the body is not an OTLP {self.signal.name} export request: truncated or not protobuf"
            )
        if not body:
            return
        if self.waiting_bytes + len(body) > WAITING_BYTES:
            log.warning("ingest full signal=%s waiting_bytes=%d", self.signal.name, self.waiting_bytes)
            raise UnavailableError("the collector has too much to store at the moment: send it again", full=True)
        request = _Waiting(body)
        self._queue.append(request)
        self.waiting_bytes += len(body)
        self._idle.clear()
        self._wake.set()
        await request.stored

    async def close(self) -> None:
        """Store what is waiting, then let go of the engine."""
        await self._idle.wait()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown()
        self._writer.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_start = 0.0
        while True:
            await self._wake.wait()
            if self.waiting_bytes < BATCH_BYTES:
                await asyncio.sleep(max(GATHER_S, next_start - loop.time()))
            next_start = loop.time() + INTERVAL_S
            batch = self._take()
            outcomes = await loop.run_in_executor(self._thread, self._writer.write, [request.body for request in batch])
            for request, outcome in zip(batch, outcomes, strict=True):
                self.waiting_bytes -= len(request.body)
                if request.stored.done():  # whoever sent it has gone; it is stored or not all the same
                    continue
                if outcome is None:
                    request.stored.set_result(None)
                else:
                    request.stored.set_exception(outcome)
            if not self._queue:
                self._wake.clear()
                self._idle.set()

    def _take(self) -> list[_Waiting]:
        batch = [self._queue.popleft()]
        size = len(batch[0].body)
        while self._queue and size + len(self._queue[0].body) <= BATCH_BYTES:
            batch.append(self._queue.popleft())
            size += len(batch[-1].body)
        return batch


class Writer:
    """The blocking half: inserts a batch, and finds out who is to blame when the engine refuses it."""

    def __init__(self, connection: Connection, signal: Signal) -> None:
        self._connection = connection
        self._signal = signal
        self._decode_until = 0.0
        connection.set({"max_threads": "1", "max_insert_threads": "1"})

    def write(self, bodies: list[bytes]) -> list[TracegradError | None]:
        """What became of each body: None when it is on disk. Never raises: whoever waits must get an answer."""
        try:
            return self._write(bodies)
        except Exception:
            log.exception("insert broke signal=%s bodies=%d", self._signal.name, len(bodies))
            return [UnavailableError("the collector failed to store it: send it again")] * len(bodies)

    def _write(self, bodies: list[bytes]) -> list[TracegradError | None]:
        if time.monotonic() >= self._decode_until:
            try:
                self._insert(b"".join(bodies))
            except EngineError as error:
                log.debug("fast insert refused signal=%s error=%s", self._signal.name, error)
            else:
                return [None] * len(bodies)
        return self._write_decoded(bodies)

    def _write_decoded(self, bodies: list[bytes]) -> list[TracegradError | None]:
        outcomes: list[TracegradError | None] = [None] * len(bodies)
        good: dict[int, bytes] = {}
        for index, body in enumerate(bodies):
            try:
                good[index] = flattened(self._signal, body)
            except MalformedError as error:
                outcomes[index] = error
            else:
                if good[index] is not body:
                    self._decode_until = time.monotonic() + SLOW_PATH_S
        try:
            self._insert(b"".join(good.values()))
        except EngineError as error:
            if len(good) == 1:
                (index,) = good
                outcomes[index] = self._unavailable(error)
            else:
                for index, body in good.items():
                    (outcomes[index],) = self._write_decoded([body])
        return outcomes

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()

    def _insert(self, body: bytes) -> None:
        if body:
            self._signal.insert(self._connection, body)

    def _unavailable(self, error: EngineError) -> UnavailableError:
        log.error("insert failed signal=%s code=%d error=%.500s", self._signal.name, error.code, str(error))
        return UnavailableError(f"the store did not take it (ClickHouse error {error.code}): send it again")


def is_framed(body: bytes) -> bool:
    """Whether `body` is a whole number of top-level protobuf fields.

    Bodies are concatenated: a truncated one would swallow the beginning of the next. Inside its fields the engine sees
    for itself, since each says how long it is.
    """
    at, end = 0, len(body)
    while at < end:
        tag, at = _varint(body, at)
        match tag & 7:
            case 0:
                at = _varint(body, at)[1]
            case 1:
                at += 8
            case 2:
                length, at = _varint(body, at)
                at += length
            case 5:
                at += 4
            case _:
                return False
    return at == end


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends; beyond the end of `body` when it is cut off or longer than ten bytes."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(body):
            break
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, len(body) + 1
