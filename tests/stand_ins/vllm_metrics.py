"""What a real vLLM says of itself while it works."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import aiohttp

RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} (\S+)$", re.M)


async def all_running(session: aiohttp.ClientSession, url: str, calls: Sequence[asyncio.Task[Any]]) -> None:
    """Return when the engine at `url` works on as many calls as these, or no longer can: all have an answer."""
    running = 0.0
    while running < len(calls) and not all(call.done() for call in calls):
        async with session.get(f"{url}/metrics") as exposed:
            running = sum(map(float, RUNNING.findall(await exposed.text())))
