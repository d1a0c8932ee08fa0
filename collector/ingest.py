"""Takes OTLP requests: checks each, puts it into the spool, and returns when it may be acknowledged.

Invariant: what is acknowledged is in the spool, and with `fsync = "always"` on disk. Nothing waits in memory to be
spooled: a request that the spool has no room for is refused at once, to come again. What is in it is well formed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from collector.nested import MalformedError
from collector.otlp_bytes import of_bytes, well_formed
from collector.otlp_records import count_records
from collector.signals import Signal
from collector.spool import Spool
from collector.spool_batch import SpoolFullError
from collector.spool_cursor import Position
from collector.spool_segment import HEAD
from tracegrad.errors import TracegradError
from tracegrad.settings import Fsync

log = logging.getLogger(__name__)

THREAD_BYTES = 1 << 18
"""Larger bodies are worked on in a thread: the event loop has others to serve."""
ROWS_BYTES = 1 << 30
"""Of resources and scopes in the rows of one request: a small one could keep the store busy for hours."""
FULL_RETRY_S = 5.0
"""A spool that is full empties at the speed of the store."""
SYNC_S = 1.0
"""With `fsync = "interval"`: as much may be lost when the power goes."""


@dataclass(frozen=True)
class Rejected:
    """OTLP's partial success: so many records of a request that was stored were not, and why."""

    count: int
    message: str


class TooLargeError(TracegradError):
    """The request will never fit."""


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

    async def store(self, body: bytes) -> Rejected | None:
        """Return once what of `body` is well formed may be acknowledged. Raises MalformedError or UnavailableError."""
        if len(body) < THREAD_BYTES:
            body, rejected = checked(self.signal, body)
        else:
            body, rejected = await asyncio.to_thread(checked, self.signal, body)
        if body:
            await self._spooled(body)
        return rejected

    async def _spooled(self, body: bytes) -> None:
        if len(body) + HEAD > self._spool.max_bytes:
            raise TooLargeError(
                f"the request has {len(body)} bytes and the whole spool may have {self._spool.max_bytes}: send less at "
                "once, or raise spool_bytes of [collector]"
            )
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
                self._send_again("the collector's disk fails, it may not have it: send it again")
            except Exception:
                # Whatever it is, those who wait must hear of it, and those who come next must not wait for ever.
                log.exception("spool sync broke signal=%s", self.signal.name)
                self._send_again("the collector failed, its disk may not have it: send it again")
            else:
                while self._unsynced and self._unsynced[0][0] <= end:
                    synced = self._unsynced.popleft()[1]
                    if not synced.done():  # whoever sent it has gone
                        synced.set_result(None)
            if self._fsync == "interval":
                await asyncio.sleep(SYNC_S)

    def _send_again(self, why: str) -> None:
        """Also for what was appended meanwhile, which may be on disk or not: sending it again does no harm."""
        for _, synced in self._unsynced:
            if not synced.done():
                synced.set_exception(UnavailableError(why))
        self._unsynced.clear()


def checked(signal: Signal, body: bytes) -> tuple[bytes, Rejected | None]:
    """An export request of this signal as it is, or without the records that are no protobuf.

    Raises MalformedError where nothing of it is well formed, TooLargeError where its rows would be many times its size.
    """
    rejected = None
    try:
        request = signal.request.FromString(body)
    except DecodeError as error:
        try:
            request = of_bytes(signal.request).FromString(body)  # a string that is no UTF-8 is taken as it is
        except DecodeError:
            try:
                body, others = well_formed(signal.request, body)
            except DecodeError:
                others = 0
            if not others or not count_records(signal.name, body, 0):
                raise MalformedError(f"the body is not an OTLP {signal.name} export request: {error}") from error
            request = of_bytes(signal.request).FromString(body)
            rejected = Rejected(others, f"{others} of its records are no protobuf; the others are stored")
    if (size := _shared_bytes(signal, request)) > ROWS_BYTES:
        raise TooLargeError(
            f"each record is stored with its resource and scope, which makes {size} bytes of this request: send fewer "
            "records at once, or less with each resource"
        )
    return body, rejected


def _shared_bytes(signal: Signal, request: Any) -> int:
    """What resources and scopes come to when each record has its own."""
    of_resource = signal.request.DESCRIPTOR.fields_by_number[1]
    of_scope = of_resource.message_type.fields_by_number[2]
    records = of_scope.message_type.fields_by_number[2].name
    return sum(
        (resource.resource.ByteSize() + scope.scope.ByteSize()) * len(getattr(scope, records))
        for resource in getattr(request, of_resource.name)
        for scope in getattr(resource, of_scope.name)
    )
