"""A policy, its replicas, and which weights each of them runs.

Invariant: a call is stamped with a version only if the engine itself named that version before the call began and
again after it ended, and nothing changed in between (`Replica.stamp` equals what `Replica.confirmed` returns).
The engine is the only source of a version: what we published is never taken for what runs.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import aiohttp

from sidecar import engine
from sidecar.engine import EngineError, EngineGoneError, NoVersionError

log = logging.getLogger(__name__)

POLL_S = 1.0
"""How often an idle engine is asked for its version."""
MIN_GAP_S = 0.03
"""Calls that end within this time share one question to the engine."""
CHECK_TIMEOUT_S = 60.0
"""An engine answers between two steps, which take seconds on a loaded CPU: slow is not gone."""


@dataclass(frozen=True)
class Stamp:
    """What was known of a replica's weights at one moment. `version` None: not known."""

    epoch: int
    """Grows with every change of weights, every loss of contact and every update that begins or ends."""
    version: int | None


class Replica:
    """One engine. All state changes happen on the event loop's thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.healthy = False
        self.problem = "not asked yet"
        self.in_flight = 0
        self.transfer_ready = False
        self.updating = False
        self.paused = False
        self.broken = False
        """A load failed half-way: what the engine says of its version is not believed until one succeeds."""
        self.mute = False
        """It answers but cannot tell its version: nobody waits for one."""
        self._open = asyncio.Event()
        self._open.set()
        self._stamp = Stamp(0, None)
        self._demand = asyncio.Event()
        self._waiters: list[asyncio.Future[Stamp]] = []

    @property
    def stamp(self) -> Stamp:
        """What is known now."""
        return self._stamp

    @property
    def version(self) -> int | None:
        """The version the engine named last; None while unknown or changing."""
        return self._stamp.version

    @property
    def is_open(self) -> bool:
        """Whether new calls may go to it."""
        return self._open.is_set()

    async def opened(self) -> None:
        """Wait until new calls may go to it."""
        await self._open.wait()

    def set_gate(self, *, updating: bool | None = None, paused: bool | None = None) -> None:
        """Say what holds new calls back: a running update, an operator's pause."""
        self.updating = self.updating if updating is None else updating
        self.paused = self.paused if paused is None else paused
        if self.updating or self.paused:
            self._open.clear()
        else:
            self._open.set()

    @contextlib.contextmanager
    def serving(self) -> Iterator[Stamp]:
        """Count a call as in flight; gives the stamp at its start."""
        self.in_flight += 1
        try:
            yield self._stamp
        finally:
            self.in_flight -= 1

    def found(self, version: int) -> None:
        """The engine named its version."""
        if not self.healthy:
            log.info("replica found url=%s version=%d", self.url, version)
        if self.version not in (None, version):
            self.transfer_ready = False  # not our doing: a restart that was too quick to be seen otherwise
        self.healthy, self.problem, self.mute = True, "", False
        self.observed(version)

    def observed(self, version: int | None) -> None:
        """The version is this now; None: it is about to change."""
        if version != self._stamp.version or version is None:
            self._stamp = Stamp(self._stamp.epoch + 1, version)

    def lost(self, problem: str) -> None:
        """The engine could not be reached or has no version: whatever it ran, it may be another one now."""
        if self.healthy or problem != self.problem:
            log.warning("replica lost url=%s problem=%s", self.url, problem)
        self.healthy, self.problem, self.transfer_ready = False, problem, False
        self.observed(None)

    def doubt(self) -> None:
        """Something odd happened: ask the engine soon."""
        self._demand.set()

    async def confirmed(self) -> Stamp:
        """The stamp after asking the engine once more, by a question that begins after this call."""
        waiter: asyncio.Future[Stamp] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._demand.set()
        return await waiter

    async def watch(self, session: aiohttp.ClientSession) -> None:
        """Keep asking the engine for its version, on demand and every `POLL_S`. Runs until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._demand.wait(), POLL_S)
            self._demand.clear()
            waiters, self._waiters = self._waiters, []
            try:
                await self._ask(session)
            finally:
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(self._stamp)
            await asyncio.sleep(MIN_GAP_S)

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        if self.updating:
            return
        epoch = self._stamp.epoch
        try:
            version = await engine.weight_version(session, self.url, CHECK_TIMEOUT_S)
            left_paused = not self.healthy and not self.paused and await engine.is_paused(session, self.url)
        except EngineError as error:
            if not self.updating:
                # A process that ended took its half-loaded weights along.
                self.broken = self.broken and not isinstance(error, EngineGoneError)
                self.mute = isinstance(error, NoVersionError)
                self.lost(str(error))
            return
        if self.updating or self.broken or self._stamp.epoch != epoch:
            return
        if left_paused:
            await self._take_over(session)
        else:
            self.found(version)

    async def _take_over(self, session: aiohttp.ClientSession) -> None:
        """Resume an engine whose publisher died in the middle. It serves; it trains after the next publication."""
        self.broken = True
        self.lost("found paused in the middle of a weight update: publish again")
        try:
            await engine.resume(session, self.url)
        except EngineError as error:
            log.warning("resume failed url=%s problem=%s", self.url, error)


@dataclass(frozen=True)
class Policy:
    """A policy: weights that change, and the engines that serve them."""

    name: str
    model: str
    """The model name under which agents ask for it (`*`: any)."""
    replicas: tuple[Replica, ...]

    @property
    def version(self) -> int | None:
        """The version that all replicas run; None while they differ or one is not known."""
        versions = {replica.version for replica in self.replicas}
        return versions.pop() if len(versions) == 1 else None

    async def choose(self, tried: Collection[Replica], rollout_id: str | None = None) -> Replica | None:
        """The least busy replica that takes new calls, waiting for one; None when all were tried."""
        while left := [replica for replica in self.replicas if replica not in tried]:
            if ready := [replica for replica in left if replica.is_open]:
                chosen = min(ready, key=lambda replica: (not replica.healthy, replica.in_flight))
                if chosen.version is None and not chosen.broken and not chosen.mute:
                    await chosen.confirmed()
                if chosen.is_open:
                    return chosen
                continue
            await _any_opened(left)
        return None


async def _any_opened(replicas: list[Replica]) -> None:
    waits = [asyncio.create_task(replica.opened()) for replica in replicas]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
