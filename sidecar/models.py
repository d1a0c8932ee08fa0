"""The model list: what each upstream lists, as far as a call for that name may be routed there, and our own names.

An entry with `served` offers its upstream's model under the entry's name: the list shows that model under that name.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from sidecar.chat_answer import mapping, objects
from sidecar.forward import request_headers, upstream_url
from sidecar.matcher import STAR
from sidecar.openai_error import JSON, openai_error
from sidecar.routes import Route, Routes

log = logging.getLogger(__name__)

TIMEOUT_S = 15.0

Listing = dict[str, Any]


async def list_models(session: aiohttp.ClientSession, routes: Routes, request: web.BaseRequest) -> web.Response:
    """`GET /v1/models`: 200 while any upstream answers, else 502."""
    found = await _all_models(session, routes, request)
    if found is None:
        return _no_list(routes)
    return web.Response(body=orjson.dumps({"object": "list", "data": list(found.values())}), headers=JSON)


async def show_model(
    session: aiohttp.ClientSession, routes: Routes, request: web.BaseRequest, name: str
) -> web.Response:
    """`GET /v1/models/{id}`, also for upstreams that have no such path."""
    found = await _all_models(session, routes, request)
    if found is None:
        return _no_list(routes)
    if name not in found:
        message = f"The model `{name}` does not exist. Known here: {', '.join(found)}"
        return openai_error(404, message, code="model_not_found")
    return web.Response(body=orjson.dumps(found[name]), headers=JSON)


def _no_list(routes: Routes) -> web.Response:
    message = f"no upstream lists its models at {', '.join(routes.upstreams)}: start the model server"
    return openai_error(502, message, code="upstream_unreachable")


async def _all_models(
    session: aiohttp.ClientSession, routes: Routes, request: web.BaseRequest
) -> dict[str, Listing] | None:
    sources: dict[str, Route] = {}
    for entry in routes.entries:
        for url in entry.upstreams:
            sources.setdefault(url, entry)
    answers = await asyncio.gather(*(_ask(session, route, url, request) for url, route in sources.items()))
    if all(answer is None for answer in answers):
        return None
    return merged(routes, {url: answer or [] for url, answer in zip(sources, answers, strict=True)})


def merged(routes: Routes, listed: Mapping[str, Iterable[Listing]]) -> dict[str, Listing]:
    """One list, by name, from what every upstream lists."""
    found: dict[str, Listing] = {}
    for url, models in listed.items():
        own = {str(model.get("id")): model for model in models}
        for name, model in own.items():
            if any(url in route.upstreams and route.served in (None, name) for route in routes.candidates(name)):
                found.setdefault(name, model)
        for route in routes.entries:
            if STAR not in route.name and url in route.upstreams and route.served in own:
                found.setdefault(route.name, {**own[route.served], "id": route.name})
    return found


async def _ask(
    session: aiohttp.ClientSession, route: Route, url: str, request: web.BaseRequest
) -> list[Listing] | None:
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
