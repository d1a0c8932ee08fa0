"""Waiting until something about a replica has changed, also where another process changes it."""

import asyncio
from collections.abc import Callable

POLL_S = 0.005
"""How often what another process may change is looked at while anybody waits."""


class Turns:
    """The changes of one replica's state. `shared`: some come from another process, and no event tells of them."""

    def __init__(self, state: Callable[[], object], *, shared: bool, name: str) -> None:
        self._state = state
        self._shared = shared
        self._name = name
        self._poke = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    def happened(self) -> None:
        """This process changed something."""
        self._poke.set()

    async def away_from(self, state: object) -> None:
        """Wait until the state is another one."""
        while self._state() == state:
            self._poke.clear()
            if self._shared and (self._poller is None or self._poller.done()):
                self._poller = asyncio.create_task(self._poll(state), name=f"turns of {self._name}")
            await self._poke.wait()

    def stop(self) -> None:
        """Nobody waits any longer."""
        if self._poller is not None:
            self._poller.cancel()

    async def _poll(self, state: object) -> None:
        """Look again and again, once for all that wait."""
        while self._state() == state:  # noqa: ASYNC110 - no event crosses processes
            await asyncio.sleep(POLL_S)
        self._poke.set()
