"""Rollouts against the toy engine, and how many bytes of spans one leaves."""

import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from sidecar_harness import listening
from toy_engine import TOOL, ToyEngine

from sidecar.server import serve
from tracegrad.settings import Settings

Json = dict[str, Any]

SYSTEM = "You answer questions with the help of the documentation. Search before you answer, and name the page. " * 20
FOUND = "The page says that it depends on the settings, of which there are several. " * 5


async def bytes_per_rollout(turns: int, *, strips_thinking: bool = False) -> int:
    """The bytes that reach the collector for a tool-using rollout of so many turns through a real sidecar."""
    received = 0

    async def keep(request: web.Request) -> web.Response:
        nonlocal received
        received += len(await request.read())
        return web.Response(content_type="application/x-protobuf")

    collector = web.Application(client_max_size=1 << 30)
    collector.router.add_post("/v1/traces", keep)
    engine = ToyEngine(strips_thinking=strips_thinking)
    with tempfile.TemporaryDirectory() as data:
        async with (
            listening(collector) as otlp,
            listening(engine.application()) as upstream,
            aiohttp.ClientSession() as session,
        ):
            settings = Settings.model_validate(
                {
                    "otlp": otlp,
                    "sidecar": {"port": 0, "admin_port": 0, "data": Path(data), "weights": Path(data)},
                    "model": [{"name": "policy", "upstream": upstream, "policy": "policy"}],
                }
            )
            async with serve(settings, shutdown_s=10) as ports:
                await play(session, f"http://127.0.0.1:{ports.port}/rollout/growth/v1", turns)
    return received


async def play(session: aiohttp.ClientSession, url: str, turns: int) -> None:
    """An agent that searches once a turn."""
    messages: list[Json] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "How do I set the timeout?"},
    ]
    for turn in range(turns):
        said = await chat(session, url, messages)
        messages.append(said)
        messages.append({"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": f"{turn}: {FOUND}"})


async def chat(session: aiohttp.ClientSession, url: str, messages: list[Json], **fields: Any) -> Json:
    """One call; returns the first choice's message."""
    body = {"model": "policy", "messages": messages, "tools": [TOOL]} | fields
    async with session.post(f"{url}/chat/completions", json=body) as response:
        response.raise_for_status()
        found: Json = (await response.json())["choices"][0]["message"]
    return found
