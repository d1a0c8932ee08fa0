"""Ask one engine which weights it runs, on demand and again and again, and tell its replica.

What an engine answers is believed only if nothing changed while it was asked.
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import aiohttp

from sidecar import engine
from sidecar.engine import EngineError, EngineGoneError, NamelessVersionError, NoVersionError
from sidecar.traits import LOGITS_MODES

if TYPE_CHECKING:
    from sidecar.replica import Replica

log = logging.getLogger(__name__)

POLL_S = 1.0
"""How often an idle engine is asked for its version."""
MIN_GAP_S = 0.1
"""Calls that end within this time share one question to the engine."""
CHECK_TIMEOUT_S = 60.0
"""An engine answers between two steps, which take seconds on a loaded CPU: slow is not gone."""


class Inquiry:
    """The questions to one engine."""

    def __init__(self, replica: "Replica") -> None:
        self._replica = replica
        self._demand = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._learning: asyncio.Task[None] | None = None

    def demand(self) -> None:
        """Ask soon."""
        self._demand.set()

    async def answered(self) -> None:
        """Wait for the answer to a question that begins after this call."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._demand.set()
        await waiter

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Ask until cancelled."""
        try:
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
                            waiter.set_result(None)
                if not self._replica.closed:  # a publication waits for the answers
                    await asyncio.sleep(MIN_GAP_S)
        finally:
            self.forget()

    def forget(self) -> None:
        """Contact was lost: what comes back may be another engine."""
        self._replica.traits.forget()
        if self._learning is not None:
            self._learning.cancel()
            self._learning = None

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        replica, before = self._replica, self._replica.stamp
        if replica.updating:
            return
        try:
            version = await engine.weight_version(session, replica.url, CHECK_TIMEOUT_S)
            if replica.traits.pinned_mode is not None and replica.traits.logprobs_mode is None:
                await self._learn(session)
            comes = replica.leads and not replica.answers and not replica.paused
            left_paused = comes and await engine.is_paused(session, replica.url)
        except EngineError as error:
            if not replica.updating:
                if isinstance(error, EngineGoneError):
                    replica.gone(str(error))
                else:
                    mute, nameless = isinstance(error, NoVersionError), isinstance(error, NamelessVersionError)
                    replica.lost(str(error), mute=mute, nameless=nameless)
            return
        if replica.stamp != before:
            return
        if replica.traits.pinned_mode is None and self._learning is None:
            self._learning = asyncio.create_task(self._learn_idly(session), name=f"settings of {replica.url}")
        if left_paused:
            replica.left_paused()
            await self._resume(session)
        elif replica.broken:
            replica.revived()
        else:
            replica.found(version)

    async def _learn(self, session: aiohttp.ClientSession) -> None:
        """Ask what its log-probs are of, and whether it holds tool calls to their schema."""
        traits, url = self._replica.traits, self._replica.url
        traits.logprobs_mode, traits.strict_tools = await engine.token_settings(session, url)
        if traits.logprobs_mode in LOGITS_MODES:
            log.warning("calls train nothing: start vLLM with --logprobs-mode=raw_logprobs url=%s", url)

    async def _learn_idly(self, session: aiohttp.ClientSession) -> None:
        """The same while nobody waits for the answer, which takes vLLM seconds the first time."""
        try:
            await self._learn(session)
        except EngineError as error:
            log.debug("log-probs mode not known url=%s problem=%s", self._replica.url, error)

    async def _resume(self, session: aiohttp.ClientSession) -> None:
        """Nobody else will: it serves, and trains after the next publication."""
        try:
            await engine.resume(session, self._replica.url)
        except EngineError as error:
            log.warning("resume failed url=%s problem=%s", self._replica.url, error)
