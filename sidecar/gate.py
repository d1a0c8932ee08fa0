"""Who may call, and how much at a time.

A request above `max_concurrency` waits for a place, first come, first served, among at most `max_waiting` and for at
most `max_wait_s`: short bursts are smoothed, and only what cannot be served soon gets 429.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from sidecar.dialect import Caller, Refusal
from sidecar.failures import stopping
from sidecar.tenants import Key, owner_of, presented_key, tenant_keys
from tracegrad.settings import Settings, SidecarSettings

RETRY_AFTER_S = 1
INVALID_KEY, OVERLOADED = "invalid_api_key", "rate_limit_exceeded"
NOBODY = Caller()


class Places:
    """A number of places, held while a request is served: `async with places`. Raises Refusal (429)."""

    def __init__(self, whose: str, count: int, max_waiting: int, max_wait_s: float) -> None:
        self.waiting = 0
        self._whose = whose
        self._free = asyncio.Semaphore(count)
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._waits: set[asyncio.Timeout] = set()
        self._closed = False

    def close(self) -> None:
        """Nobody need wait any longer: the sidecar stops."""
        self._closed = True
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        if not self._free.locked():
            await self._free.acquire()
            return self
        if self.waiting >= self._max_waiting:
            raise self._overloaded()
        self.waiting += 1
        try:
            async with asyncio.timeout(self._max_wait_s) as wait:
                self._waits.add(wait)
                try:
                    await self._free.acquire()
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            raise (stopping() if self._closed else self._overloaded()) from None
        finally:
            self.waiting -= 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._free.release()

    def _overloaded(self) -> Refusal:
        message = f"{self._whose} is serving as many requests as it may: try again in a moment"
        return Refusal(429, message, OVERLOADED, {"retry-after": str(RETRY_AFTER_S)})


class _Both:
    """A place of the tenant's, then one of all: who has to wait for its own holds none of the others'."""

    def __init__(self, first: Places, second: Places) -> None:
        self._first, self._second = first, second

    async def __aenter__(self) -> None:
        await self._first.__aenter__()
        try:
            await self._second.__aenter__()
        except BaseException:
            await self._first.__aexit__(None, None, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._second.__aexit__(kind, error, trace)
        await self._first.__aexit__(kind, error, trace)


class _Free:
    """Nothing to hold."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


_FREE = _Free()


class Gate:
    """Admits requests to the agents' port."""

    def __init__(
        self,
        limits: SidecarSettings | None = None,
        keys: Sequence[Key] = (),
        tenant_limits: Mapping[str, int] | None = None,
    ) -> None:
        limits = limits or SidecarSettings()
        self.max_body_bytes = limits.max_body_bytes
        self.max_upload_bytes = limits.max_upload_bytes or math.inf
        """Of a body that is passed on as it comes."""
        self.timeout_s = limits.timeout_s or None
        """How long one request may take, from its arrival to its last byte; None: as long as it likes."""
        self._limits = limits
        self._keys = tuple(keys)
        self._all = self._places("the sidecar", limits.max_concurrency)
        given = tenant_limits or {}
        places = {name: self._places(f"tenant {name}", count) for name, count in given.items()}
        self._tenants = {name: one for name, one in places.items() if one is not None}

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return sum(one.waiting for one in (self._all, *self._tenants.values()) if one is not None)

    def close(self) -> None:
        """Whoever waits for a place is turned away: the sidecar stops."""
        for one in (self._all, *self._tenants.values()):
            if one is not None:
                one.close()

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who asks. Raises Refusal (401) where tenants are configured and the key is none of theirs."""
        if not self._keys:
            return NOBODY
        tenant = owner_of(self._keys, presented_key(headers))
        if tenant is None:
            raise Refusal(
                401,
                "no valid API key: send one of this sidecar's tenants as `Authorization: Bearer` or `x-api-key`",
                INVALID_KEY,
                {"www-authenticate": "Bearer"},
            )
        return Caller(tenant)

    def slot(self, caller: Caller) -> AbstractAsyncContextManager[object]:
        """Hold one of the places for requests at a time. Entering raises Refusal (429) where none gets free."""
        own = self._tenants.get(caller.tenant) if self._tenants else None
        if own is None:
            return self._all or _FREE
        return own if self._all is None else _Both(own, self._all)

    def _places(self, whose: str, count: int) -> Places | None:
        if not count:
            return None
        share = math.ceil(count / self._limits.workers)
        return Places(whose, share, self._limits.max_waiting, self._limits.max_wait_s)


def build_gate(settings: Settings) -> Gate:
    """The gate that the settings ask for. Raises SettingsError where a key cannot be read."""
    limits = {tenant.name: tenant.max_concurrency for tenant in settings.tenant if tenant.max_concurrency}
    return Gate(settings.sidecar, tenant_keys(settings), limits)


def too_large(limit: float) -> Refusal:
    """The refusal of a body that is larger than `limit` bytes."""
    return Refusal(413, f"the request is larger than {limit:.0f} bytes", "request_too_large")
