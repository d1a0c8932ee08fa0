"""The least that any aiohttp proxy with capture does, as a process: the floor that the sidecar is compared with.

It reads the request, asks the engine for ids and log-probs too, reads the answer, takes them out again and encodes what
is left. Nothing is recorded. `python -m tracegrad.bench.minimal_proxy UPSTREAM` prints its port.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import uvloop
from aiohttp import web

EVENT = b"data: {"
UPSTREAM = web.AppKey("upstream", str)
SESSION = web.AppKey("session", aiohttp.ClientSession)
JSON_HEADERS = {"content-type": "application/json"}


def _strip(answer: dict[str, Any]) -> bytes:
    answer.pop("prompt_token_ids", None)
    for choice in answer["choices"]:
        choice.pop("token_ids", None)
        choice.pop("logprobs", None)
    return orjson.dumps(answer)


async def chat(request: web.Request) -> web.StreamResponse:
    """One call."""
    body = orjson.loads(await request.read())
    body |= {"return_token_ids": True, "logprobs": True}
    session, url = request.app[SESSION], request.app[UPSTREAM]
    async with session.post(url, data=orjson.dumps(body), headers=JSON_HEADERS) as answer:
        if answer.content_type == "text/event-stream":
            return await _stream(request, answer)
        shown = _strip(orjson.loads(await answer.read()))
        return web.Response(body=shown, status=answer.status, content_type="application/json")


async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    rest = b""
    async for received in answer.content.iter_any():
        *events, rest = (rest + received).split(b"\n\n")
        if events:
            shown = [EVENT[:-1] + _strip(orjson.loads(one[6:])) if one.startswith(EVENT) else one for one in events]
            await response.write(b"\n\n".join([*shown, b""]))
    await response.write_eof()
    return response


async def _session(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:
        app[SESSION] = session
        yield


async def _serve(upstream: str) -> None:
    app = web.Application(client_max_size=1 << 26)
    app[UPSTREAM] = upstream + "/v1/chat/completions"
    app.router.add_post("/v1/chat/completions", chat)
    app.cleanup_ctx.append(_session)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
