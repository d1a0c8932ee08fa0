"""What both OTLP transports share: the token, the limits, the road to the store, and what is said and counted.

Invariants: a request is acknowledged only after its `store` returned. Whatever else happens to it is a RefusedError,
which says what to do, and whether to come again. Every request is counted once, by what became of it. All that is
being read and stored shares one bound, so that no number of senders takes more memory. What was sent is never logged.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, Protocol

from google.protobuf.message import Message

from collector import metrics
from collector.ingest import THREAD_BYTES, Rejected, TooLargeError, UnavailableError
from collector.nested import MalformedError
from collector.otlp_records import count_records
from collector.rpc_status import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAUTHENTICATED, UNAVAILABLE
from collector.signals import Signal

log = logging.getLogger(__name__)

HELD_BYTES = 256 << 20
"""Of requests, from their first byte to their answer, over both transports."""
IN_FLIGHT = 2048
MAX_RECORDS = 1 << 17
"""In one request. Each record becomes a row with the whole of its resource."""
RETRY_S = 1.0
READ_S = 20.0
"""How long one request may take to arrive: whoever stalls must not keep the room of others."""
COMPLAIN_S = 10.0
"""Refusals for one reason are logged so often at most; `GET /metrics` has them all."""

Reason = Literal[
    "malformed",
    "too_large",
    "unsupported",
    "unauthenticated",
    "full",
    "busy",
    "slow",
    "unavailable",
    "fault",
    "gone",  # the connection ended first
    "unread",  # over gRPC: too large, or gone
]
Transport = Literal["http", "grpc"]


class RefusedError(Exception):
    """`code`: google.rpc.Code. `retry_after_s`: None where sending the same again is of no use."""

    def __init__(self, reason: Reason, code: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.code, self.message, self.retry_after_s = reason, code, message, retry_after_s


class Storing(Protocol):
    """Where requests of one signal go."""

    @property
    def signal(self) -> Signal:
        """Whose requests it takes."""

    async def store(self, body: bytes) -> Rejected | None:
        """Return once `body` may be acknowledged. Raises MalformedError or UnavailableError."""


class Held:
    """What one request takes of the memory that all share."""

    def __init__(self, receiver: "Receiver") -> None:
        self._receiver = receiver
        self._size = 0

    def hold(self, size: int) -> None:
        """Take `size` bytes more. Raises RefusedError where there is no room."""
        self._receiver.hold(size)
        self._size += size

    def let_go(self) -> None:
        """Give it all back."""
        self._receiver.let_go(self._size)
        self._size = 0


Read = Callable[[Held], Awaitable[bytes]]


class Receiver:
    """The part that is the same for all requests. Used on the event loop."""

    def __init__(
        self,
        stores: Iterable[Storing],
        *,
        token: str | None = None,
        max_body_bytes: int = 64 << 20,
        held_bytes: int = HELD_BYTES,
        warning: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`warning` says what does not work although requests are taken, if so."""
        self.stores = {store.signal.name: store for store in stores}
        self.max_body_bytes = max_body_bytes
        self._in_flight = 0
        self.stopping = False
        self._token = None if token is None else _digest(token)
        self._held_limit = max(held_bytes, 2 * max_body_bytes)
        self._held = 0
        self.warning = warning
        self._refusing: dict[str, tuple[float, str]] = {}
        """For each signal that was not stored for want of something: until when that is so, at least, and why."""
        self._unsaid: Counter[Reason] = Counter()
        self._quiet_until: dict[Reason, float] = {}
        metrics.IN_FLIGHT.read(lambda: self._in_flight)
        metrics.HELD_BYTES.read(lambda: self._held)

    @property
    def problem(self) -> str | None:
        """Why it is not ready to take exports; None where it is."""
        if self.stopping:
            return "it is stopping"
        now = time.monotonic()
        return next((why for until, why in self._refusing.values() if now < until), None)

    async def export(self, signal: str, transport: Transport, authorization: str, read: Read) -> Message:
        """Store one request, which `read` gets as plain protobuf, and return OTLP's answer. Raises RefusedError."""
        store, held, records, began = self.stores[signal], Held(self), 0, time.monotonic()
        self._in_flight += 1
        try:
            self._admit(authorization)
            async with asyncio.timeout(READ_S):
                body = await read(held)
            records = await _count(signal, body)
            rejected = await store.store(body)
        except asyncio.CancelledError:
            self._count_refused(signal, transport, "gone", records)
            raise
        except Exception as error:
            refusal = _refusal(error)
            if isinstance(error, UnavailableError):
                self._refusing[signal] = time.monotonic() + error.retry_after_s, str(error)
            if refusal.reason == "fault":
                log.exception("otlp request broke signal=%s transport=%s", signal, transport)
            self._count_refused(signal, transport, refusal.reason, records)
            raise refusal from error
        finally:
            self._in_flight -= 1
            held.let_go()
        self._refusing.pop(signal, None)
        _count_stored(signal, transport, len(body), records, rejected)
        metrics.ACKNOWLEDGED.observe(time.monotonic() - began, signal, transport)
        return _answer(store.signal, rejected)

    def too_large(self) -> RefusedError:
        """What is said of a request that is larger than it may be."""
        return RefusedError(
            "too_large",
            INVALID_ARGUMENT,
            f"the body is larger than {self.max_body_bytes} bytes: send less at once, or raise max_body_bytes of"
            " [collector]",
        )

    def hold(self, size: int) -> None:
        """Count `size` bytes as taken in. Raises RefusedError where there is no room for them."""
        if self._held + size > self._held_limit:
            raise _later("busy", "the collector is reading too much at the moment: send it again")
        self._held += size

    def let_go(self, size: int) -> None:
        """They are no longer there."""
        self._held -= size

    def _admit(self, authorization: str) -> None:
        self.authorise(authorization)
        if self._in_flight > IN_FLIGHT:
            raise _later("busy", f"more than {IN_FLIGHT} requests are being stored: send it again")

    def authorise(self, authorization: str) -> None:
        """Raises RefusedError where a token is asked for and `authorization` does not bear it."""
        if self._token is None:
            return
        scheme, _, token = authorization.strip().partition(" ")
        if not hmac.compare_digest(_digest(token.strip()), self._token) or scheme.lower() != "bearer":
            raise RefusedError(
                "unauthenticated",
                UNAUTHENTICATED,
                "this collector asks for a token: send `Authorization: Bearer TOKEN`"
                " (OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN)",
            )

    def _count_refused(self, signal: str, transport: Transport, reason: Reason, records: int) -> None:
        metrics.REQUESTS.add(signal, transport, reason)
        if records:
            metrics.RECORDS.add(signal, transport, reason, amount=records)
        self._unsaid[reason] += 1
        if (now := time.monotonic()) >= self._quiet_until.get(reason, 0.0):
            self._quiet_until[reason] = now + COMPLAIN_S
            count = self._unsaid.pop(reason)
            log.warning("otlp not stored reason=%s signal=%s transport=%s count=%d", reason, signal, transport, count)


async def _count(signal: str, body: bytes) -> int:
    """How many records there are. Raises MalformedError and RefusedError."""
    if len(body) < THREAD_BYTES:
        records = count_records(signal, body, MAX_RECORDS)
    else:
        records = await asyncio.to_thread(count_records, signal, body, MAX_RECORDS)
    if records > MAX_RECORDS:
        raise RefusedError(
            "too_large", INVALID_ARGUMENT, f"there are more than {MAX_RECORDS} records in it: send fewer at once"
        )
    return records


def _count_stored(signal: str, transport: Transport, size: int, records: int, rejected: Rejected | None) -> None:
    metrics.REQUESTS.add(signal, transport, "stored")
    metrics.BYTES.add(signal, transport, amount=size)
    not_taken = min(rejected.count, records) if rejected else 0
    if not_taken:
        metrics.RECORDS.add(signal, transport, "rejected", amount=not_taken)
    if records > not_taken:
        metrics.RECORDS.add(signal, transport, "stored", amount=records - not_taken)


def _refusal(error: Exception) -> RefusedError:
    refusal = _later("fault", "the collector failed, see its log: send it again")
    match error:
        case RefusedError():
            refusal = error
        case MalformedError():
            refusal = RefusedError("malformed", INVALID_ARGUMENT, str(error))
        case TooLargeError():
            refusal = RefusedError("too_large", INVALID_ARGUMENT, str(error))
        case UnavailableError(full=True):
            refusal = _later("full", str(error), error.retry_after_s, RESOURCE_EXHAUSTED)
        case UnavailableError():
            refusal = _later("unavailable", str(error), error.retry_after_s)
        case ConnectionError():
            refusal = _later("gone", "the connection ended before the request did: send it again")
        case TimeoutError():
            refusal = _later("slow", f"the request did not arrive within {READ_S:g} s: send it again")
    return refusal


def _answer(signal: Signal, rejected: Rejected | None) -> Message:
    answer = signal.response()
    if rejected is not None:
        partial = answer.partial_success
        setattr(partial, partial.DESCRIPTOR.fields_by_number[1].name, rejected.count)
        partial.error_message = rejected.message
    return answer


def _later(reason: Reason, message: str, after_s: float = RETRY_S, code: int = UNAVAILABLE) -> RefusedError:
    return RefusedError(reason, code, message, after_s)


def _digest(token: str) -> bytes:
    """Of equal length for all tokens, so that comparing tells nothing of theirs."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
