"""The engines that one process looks after: one `Replica` per URL for as long as it is configured.

What looks after them follows the routing table: tasks start for engines that come, and end for those that have gone
once nothing needs them any more. An engine that stays keeps its object, and so what is known of it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp

from sidecar.background import running
from sidecar.board import Board
from sidecar.catch_up import keep_current
from sidecar.continuation.road import Continuation
from sidecar.continuation.watch import examined
from sidecar.places import capacity, placed
from sidecar.policy import Policy, Replica
from sidecar.publish import Publisher
from sidecar.routes import Routes, build_routes, policy_engines
from tracegrad.settings import Settings

FIRST_ANSWER_S = 2.0
RETIRE_S = 30.0
"""An engine that has gone from the configuration is still asked for its version for so long after its last call."""
CHECK_S = 0.5


class Fleet:
    """Builds routing tables over engines that outlive them. `publisher`: of the process that publishes."""

    def __init__(
        self, session: aiohttp.ClientSession, board: Board, places: Mapping[str, int], publisher: Publisher | None
    ) -> None:
        self.places = dict(places)
        self._session = session
        self._board = board
        self._publisher = publisher
        self._replicas: dict[str, Replica] = {}
        self._continuations: dict[str, Continuation] = {}
        self._watches: dict[str, AsyncExitStack] = {}
        self._currents: dict[tuple[str, str], tuple[Policy, AsyncExitStack]] = {}
        self._examination: AsyncExitStack | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def build(self, settings: Settings, places: Mapping[str, int] | None = None) -> Routes:
        """A routing table, and nothing else yet. Raises SettingsError."""
        chosen = placed(policy_engines(settings), self.places, self._board.replicas) if places is None else places
        known = {url: one for url, one in self._replicas.items() if chosen.get(url) == self.places.get(url)}
        return build_routes(settings, self._board, chosen, known, self._continuations)

    async def follow(self, routes: Routes, places: Mapping[str, int] | None = None) -> None:
        """Look after the engines of this table from now on."""
        policies = tuple(routes.policies.values())
        replicas = {replica.url: replica for policy in policies for replica in policy.replicas}
        urls = tuple(replicas)
        chosen = dict(places) if places is not None else placed(urls, self.places, self._board.replicas)
        if self._board.leads:
            for url in urls:
                if self.places.get(url) != chosen[url]:
                    self._board.vacate(chosen[url])
        gone = [url for url, replica in self._replicas.items() if replicas.get(url) is not replica]
        for url in gone:
            self._retire(self._replicas[url], self._watches.pop(url))
        self.places, self._replicas = chosen, replicas
        self._continuations = {name: one.continuation for name, one in routes.continued.items() if one.continuation}
        for url, replica in replicas.items():
            if url not in self._watches:
                self._watches[url] = await _entered(running(replica.watch(self._session), f"watch {url}"))
        if self._examination is not None:
            await self._examination.aclose()
        self._examination = await _entered(examined(routes.continued, self._session))
        if self._publisher is not None:
            await self._keep_current(policies, self._publisher)

    async def first_answers(self) -> None:
        """Wait until every engine has answered or failed to, for a moment at most."""
        asked = [asyncio.create_task(replica.confirmed()) for replica in self._replicas.values()]
        if asked:
            await asyncio.wait(asked, timeout=FIRST_ANSWER_S)
        for task in asked:
            task.cancel()

    @property
    def problems(self) -> list[str]:
        """What is wrong with engines that do not serve."""
        return [replica.problem or "no version" for replica in self._replicas.values() if not replica.healthy]

    async def close(self) -> None:
        """Look after none any more."""
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        if self._examination is not None:
            await self._examination.aclose()
        for stack in (*self._watches.values(), *(stack for _, stack in self._currents.values())):
            await stack.aclose()

    async def _keep_current(self, policies: Iterable[Policy], publisher: Publisher) -> None:
        wanted = {(policy.name, replica.url): (policy, replica) for policy in policies for replica in policy.replicas}
        for key, (policy, stack) in list(self._currents.items()):
            if key not in wanted or wanted[key][1] not in policy.replicas:
                # Not in the middle of a swap, which would leave the engine paused.
                async with publisher.quiet(policy):
                    await stack.aclose()
                del self._currents[key]
        for policy in policies:
            publisher.adopt(policy)
        for key, (policy, replica) in wanted.items():
            if key not in self._currents:
                following = running(keep_current(publisher, policy, replica), f"catch up {replica.url}")
                self._currents[key] = (policy, await _entered(following))

    def _retire(self, replica: Replica, watch: AsyncExitStack) -> None:
        task = asyncio.create_task(_after_last_call(replica, watch), name=f"retire {replica.url}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def _after_last_call(replica: Replica, watch: AsyncExitStack) -> None:
    """Stop watching an engine when its last calls have been proved exact, or not."""
    try:
        idle_s = 0.0
        while idle_s < RETIRE_S:
            await asyncio.sleep(CHECK_S)
            idle_s = 0.0 if replica.in_flight else idle_s + CHECK_S
    finally:
        await watch.aclose()


async def _entered(context: contextlib.AbstractAsyncContextManager[None]) -> AsyncExitStack:
    stack = AsyncExitStack()
    await stack.enter_async_context(context)
    return stack


@asynccontextmanager
async def looked_after(
    settings: Settings,
    session: aiohttp.ClientSession,
    board: Board,
    places: Mapping[str, int],
    publisher: Publisher | None,
) -> AsyncIterator[tuple[Fleet, Routes]]:
    """A fleet with the engines of the settings, while the block runs."""
    fleet = Fleet(session, board, places, publisher)
    try:
        routes = fleet.build(settings, places)
        await fleet.follow(routes, places)
        yield fleet, routes
    finally:
        await fleet.close()


def memory_places(settings: Settings) -> tuple[Board, dict[str, int]]:
    """A board for one process, with places for its engines."""
    engines = policy_engines(settings)
    board = Board.memory(capacity(len(engines)))
    return board, placed(engines, {}, board.replicas)
