"""Requests under way, and how they end when the process does.

When the time for an orderly end is over, each gets its API's error, as when its own time is over; what takes no error,
such as an answer that nobody reads, is cancelled a moment later. Either way its call is recorded, as aborted.
"""

import asyncio
import contextlib

from sidecar.forward import LAST_WORD_S, Inbound

GRACE_S = LAST_WORD_S + 0.5
"""Between the error and the cancellation."""


class UnderWay:
    """The requests of one process."""

    def __init__(self) -> None:
        self.stopping = False
        """What is cancelled from now on was cut off by us, not by its client."""
        self._open: dict[asyncio.Task[object], Inbound | None] = {}

    def enter(self) -> asyncio.Task[object]:
        """The current task serves a request from now on."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - requests are served in tasks
        self._open[task] = None
        return task

    def limits(self, inbound: Inbound) -> None:
        """The request of the current task has a deadline, that of `inbound`."""
        task = asyncio.current_task()
        if task in self._open:
            self._open[task] = inbound

    def leave(self, task: asyncio.Task[object]) -> None:
        """Its request is answered."""
        del self._open[task]

    async def end(self) -> None:
        """Have all of them end with an error, and wait until they have."""
        self.stopping = True
        for inbound in self._open.values():
            if inbound is not None:
                inbound.stop()
        if self._open:
            await asyncio.wait(tuple(self._open), timeout=GRACE_S)
        await self.cancel()

    async def cancel(self) -> None:
        """Break all of them off, and wait until they are."""
        self.stopping = True
        if tasks := tuple(self._open):
            for task in tasks:
                task.cancel()
            with contextlib.suppress(TimeoutError):  # one that does not heed it dies with the process
                async with asyncio.timeout(GRACE_S):
                    await asyncio.wait(tasks)
