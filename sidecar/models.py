"""The model list: what each upstream lists, as far as a request for that name would be routed there."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from sidecar.chat_answer import mapping, objects
from sidecar.forward import request_headers, upstream_url
from sidecar.openai_error import JSON, openai_error
from sidecar.routes import Route, Routes

log = logging.getLogger(__name__)

TIMEOUT_S = 15.0


async def list_models(session: aiohttp.ClientSession, routes: Routes, request: web.Request) -> web.Response:
    """`GET /v1/models`: 200 while any upstream answers, else 502."""
    found = await _all_models(session, routes, request)
    if found is None:
        return _no_list(routes)
    return web.Response(body=orjson.dumps({"object": "list", "data": list(found.values())}), headers=JSON)


async def show_model(session: aiohttp.ClientSession, routes: Routes, request: web.Request, name: str) -> web.Response:
    """`GET /v1/models/{id}`, also for upstreams that have no such path."""
    found = await _all_models(session, routes, request)
    if found is None:
        return _no_list(routes)
    if name not in found:
        return unknown_model(name, found)
    return web.Response(body=orjson.dumps(found[name]), headers=JSON)


def _no_list(routes: Routes) -> web.Response:
    message = f"no upstream lists its models at {', '.join(routes.upstreams)}: start the model server"
    return openai_error(502, message, code="upstream_unreachable")


def unknown_model(name: str | None, known: Mapping[str, Any]) -> web.Response:
    """OpenAI's 404 for a model that does not exist, with those that do."""
    message = f"The model `{name}` does not exist. Known here: {', '.join(known)}"
    return openai_error(404, message, code="model_not_found")


async def _all_models(
    session: aiohttp.ClientSession, routes: Routes, request: web.Request
) -> dict[str, dict[str, Any]] | None:
    sources: dict[str, Route] = {}
    for entry in routes.entries:
        for url in entry.upstreams:
            sources.setdefault(url, entry)
    answers = await asyncio.gather(*(_ask(session, route, url, request) for url, route in sources.items()))
    if all(answer is None for answer in answers):
        return None
    merged: dict[str, dict[str, Any]] = {}
    for url, answer in zip(sources, answers, strict=True):
        for model in answer or []:
            name = str(model.get("id"))
            route = routes.for_model(name)
            if route is not None and url in route.upstreams:
                merged.setdefault(name, model)
    return merged


async def _ask(
    session: aiohttp.ClientSession, route: Route, url: str, request: web.Request
) -> list[dict[str, Any]] | None:
    headers = request_headers(request.headers, route.authorization)
    headers["accept-encoding"] = "identity"
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with session.get(upstream_url(url, "/v1/models"), headers=headers, timeout=timeout) as answer:
            body = orjson.loads(await answer.read())
    except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError) as error:
        log.warning("upstream does not list its models url=%s problem=%s", url, error or type(error).__name__)
        return None
    return objects(mapping(body).get("data")) if answer.status == 200 else None
