"""Takes OTLP requests: checks each, puts it into the spool, and returns when it may be acknowledged.

Invariant: what is acknowledged is in the spool, and with `fsync = "always"` on disk. Nothing waits in memory to be
spooled: a request that the spool has no room for is refused at once, to come again. What is in it is well formed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from google.protobuf.message import DecodeError

from collector.nested import MalformedError
from collector.otlp_bytes import of_bytes
from collector.signals import Signal
from collector.spool import Spool
from collector.spool_batch import SpoolFullError
from collector.spool_cursor import Position
from tracegrad.errors import TracegradError
from tracegrad.settings import Fsync

log = logging.getLogger(__name__)

THREAD_BYTES = 1 << 18
"""Larger bodies are worked on in a thread: the event loop has others to serve."""
FULL_RETRY_S = 5.0
"""A spool that is full empties at the speed of the store."""
SYNC_S = 1.0
"""With `fsync = "interval"`: as much may be lost when the power goes."""


class UnavailableError(TracegradError):
    """Nothing is wrong with the request, but it is not stored: send it again later. `full`: for want of room."""

    def __init__(self, message: str, retry_after_s: float = 1.0, *, full: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.full = full


class Ingest:
    """Takes the requests of one signal. Made and used on the event loop; `appended` is called for each that is in."""

    def __init__(self, signal: Signal, spool: Spool, fsync: Fsync, appended: Callable[[], None]) -> None:
        self.signal = signal
        self._spool = spool
        self._fsync = fsync
        self._appended = appended
        self._unsynced: deque[tuple[Position, asyncio.Future[None]]] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if fsync != "off":
            self._task = asyncio.create_task(self._sync(), name=f"sync-{signal.name}")

    async def store(self, body: bytes) -> None:
        """Return once `body` may be acknowledged. Raises MalformedError or UnavailableError."""
        if len(body) < THREAD_BYTES:
            check(self.signal, body)
        else:
            await asyncio.to_thread(check, self.signal, body)
        if not body:
            return
        try:
            position = self._spool.append([body])
        except SpoolFullError:
            raise UnavailableError(
                f"the spool of {self.signal.name} is full, the store does not keep up: send it again later",
                FULL_RETRY_S,
                full=True,
            ) from None
        except OSError as error:
            log.error("spool does not take requests signal=%s error=%s", self.signal.name, error.strerror or error)  # noqa: TRY400
            raise UnavailableError(
                f"the collector cannot write to its disk ({error.strerror}): send it again later",
                FULL_RETRY_S,
                full=True,
            ) from error
        self._appended()
        self._wake.set()
        if self._fsync == "always":
            synced = asyncio.get_running_loop().create_future()
            self._unsynced.append((position, synced))
            await synced

    async def close(self) -> None:
        """No request may be at work."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _sync(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                end = await asyncio.to_thread(self._spool.sync)
            except OSError as error:
                log.error("spool cannot sync signal=%s error=%s", self.signal.name, error.strerror or error)  # noqa: TRY400
                # What was appended meanwhile may be on disk or not: to be told to send it again does no harm.
                for _, synced in self._unsynced:
                    if not synced.done():
                        synced.set_exception(
                            UnavailableError("the collector's disk fails, it may not have it: send it again")
                        )
                self._unsynced.clear()
            else:
                while self._unsynced and self._unsynced[0][0] <= end:
                    synced = self._unsynced.popleft()[1]
                    if not synced.done():  # whoever sent it has gone
                        synced.set_result(None)
            if self._fsync == "interval":
                await asyncio.sleep(SYNC_S)


def check(signal: Signal, body: bytes) -> None:
    """Raises MalformedError unless `body` is an export request of this signal."""
    try:
        signal.request.FromString(body)
    except DecodeError as error:
        try:
            of_bytes(signal.request).FromString(body)  # a string that is no UTF-8 is taken as it is
        except DecodeError:
            raise MalformedError(f"the body is not an OTLP {signal.name} export request: {error}") from error
