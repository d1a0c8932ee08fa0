"""Who may run a statement now: so many at once, some of which are kept for the user who writes.

Invariant: readers never have more than their part, whatever they do, so the trainer and the reward are never shut out
by them; nobody waits longer than `WAIT_S`, and those who wait are bounded, each kind of user for itself.
"""

import asyncio

from collector.clickhouse_request import error
from collector.engine import EngineError

WAIT_S = 5.0
MAX_WAITING = 64
TOO_MANY_SIMULTANEOUS_QUERIES = 202


class Turns:
    """`most` at once, of which readers have at most `readers`. For one event loop."""

    def __init__(self, most: int, readers: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._readers = asyncio.Semaphore(readers)
        self._waiting = {True: 0, False: 0}

    async def take(self, *, writes: bool) -> None:
        """Return when it is one's turn; then the caller owes a `give`. Raises EngineError when that takes too long."""
        if self._waiting[writes] >= MAX_WAITING:
            raise _too_many(f"{MAX_WAITING} statements wait already")
        self._waiting[writes] += 1
        try:
            async with asyncio.timeout(WAIT_S):
                if not writes:
                    await self._readers.acquire()
                try:
                    await self._all.acquire()
                except BaseException:
                    if not writes:
                        self._readers.release()
                    raise
        except TimeoutError:
            raise _too_many(f"none of those that run ended within {WAIT_S:.0f} s") from None
        finally:
            self._waiting[writes] -= 1

    def give(self, *, writes: bool) -> None:
        """The statement has ended."""
        self._all.release()
        if not writes:
            self._readers.release()


def _too_many(why: str) -> EngineError:
    return error(
        TOO_MANY_SIMULTANEOUS_QUERIES,
        f"too many statements run at once, and {why}: send it again later, or stop one of yours by "
        "KILL QUERY WHERE query_id = '...'. (TOO_MANY_SIMULTANEOUS_QUERIES)",
    )
