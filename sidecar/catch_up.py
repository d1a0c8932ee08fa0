"""Engines that come back with other weights than were published are brought to the published ones before they serve.

A restarted engine has the weights it was started with (version 0), one whose update broke off has unknown ones. Calls
for it wait, or go to other replicas, while it is brought up to date; where that fails it is out of service and tried
again, ever more seldom. An engine on a version that nobody published here is left alone: another publisher has it. It
serves as a last resort, and its calls train nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from sidecar.background import running
from sidecar.board import BEAT_S, Board
from sidecar.policy import Policy, Replica
from sidecar.publish import Publisher
from tracegrad.errors import TracegradError

FIRST_RETRY_S, LAST_RETRY_S = 5.0, 60.0


@asynccontextmanager
async def kept_current(publisher: Publisher, policies: Iterable[Policy], board: Board) -> AsyncIterator[None]:
    """While the block runs, replicas run what was published last, and workers know that their publisher lives."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(_beats(board), "beat"))
        for policy in policies:
            publisher.adopt(policy)
            for replica in policy.replicas:
                following = running(keep_current(publisher, policy, replica), f"catch up {replica.url}")
                await stack.enter_async_context(following)
        yield


async def keep_current(publisher: Publisher, policy: Policy, replica: Replica) -> None:
    """Bring a replica up to date whenever it is behind. Runs until cancelled."""
    retry_s = FIRST_RETRY_S
    while True:
        replica.changed.clear()
        if not replica.behind:
            retry_s = FIRST_RETRY_S
            await replica.changed.wait()
            continue
        try:
            await publisher.catch_up(policy, replica)
        except TracegradError as error:
            replica.set_aside(f"{error}; to let it serve what it has, `tracegrad policy forget {policy.name}`")
            replica.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(replica.changed.wait(), retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)


async def _beats(board: Board) -> None:
    while True:
        board.beat()
        await asyncio.sleep(BEAT_S)
