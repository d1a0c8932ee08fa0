"""Examines the templates of a sidecar's policies when it starts, so that it can say at once what calls will do."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from sidecar.continuation.render import Renderer, RenderError
from sidecar.routes import Route

PAUSE_S = 2.0
"""Between two looks at engines that do not answer yet."""


@asynccontextmanager
async def examined(routes: Mapping[str, Route], session: aiohttp.ClientSession) -> AsyncIterator[None]:
    """While the block runs, every policy's engines are examined as they come up. `routes`: an entry of each policy."""
    tasks = [asyncio.create_task(_examine(route, session)) for route in routes.values()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _examine(route: Route, session: aiohttp.ClientSession) -> None:
    continuation, policy = route.continuation, route.policy
    if continuation is None or policy is None:
        return
    model = route.served or (route.name if "*" not in route.name else None)
    left = list(policy.replicas) if continuation.setting != "off" else []
    while left:
        for replica in [one for one in left if one.healthy]:
            try:
                await continuation.examine(Renderer(session, replica.url, route.authorization), {"model": model})
            except RenderError as error:
                if not error.refused:
                    continue
            left.remove(replica)
        await asyncio.sleep(PAUSE_S)
