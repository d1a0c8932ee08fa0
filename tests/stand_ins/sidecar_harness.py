"""A sidecar with its neighbours for tests: clients for both ports, and a way to serve an application."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from stand_ins import Receiver


@dataclass
class Harness:
    """A running sidecar with its neighbours. `session` is a plain HTTP client."""

    url: str
    admin: str
    session: aiohttp.ClientSession
    receiver: Receiver
    weights: Path

    async def chat(self, body: dict[str, Any], *, at: str = "/v1", **headers: str) -> aiohttp.ClientResponse:
        request = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]} | body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.session.post(f"{self.url}{at}/chat/completions", json=request, headers=named)


@contextlib.asynccontextmanager
async def listening(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
