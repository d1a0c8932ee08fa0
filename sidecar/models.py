"""The model list: one upstream's own, or what several list, as far as a call for that name may be routed there.

Where there is one entry, without `served`, questions and answers pass as they are. Else the lists are merged: an entry
with `served` offers its upstream's model under the entry's name, and the list shows that model under that name. A list
in Anthropic's shape, which has pages, cannot be merged: it passes as it is to who asks in Anthropic's way.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import web

from sidecar.chat_answer import mapping, objects
from sidecar.forward import Inbound, request_headers, response_headers, upstream_url
from sidecar.matcher import STAR
from sidecar.openai_error import JSON, openai_error
from sidecar.passthrough import forward
from sidecar.routes import Route, Routes

log = logging.getLogger(__name__)

MODELS_PATH = "/v1/models"
ANTHROPIC = "anthropic-version"
"""The header of Anthropic's clients."""
TIMEOUT_S = 15.0

Listing = dict[str, Any]


@dataclass(frozen=True)
class Listed:
    """What one upstream answered."""

    status: int
    headers: Mapping[str, str]
    raw: bytes
    body: Mapping[str, Any]

    @property
    def models(self) -> list[Listing]:
        """Its models; none where it refused."""
        return objects(self.body.get("data")) if self.status == 200 else []

    @property
    def is_anthropic(self) -> bool:
        """Whether it is a page of Anthropic's list."""
        return "has_more" in self.body and "object" not in self.body

    @property
    def as_it_is(self) -> web.Response:
        """The answer, for who asked."""
        headers = response_headers(self.headers, changed=True)
        return web.Response(status=self.status, body=self.raw, headers=headers)


async def list_models(
    session: aiohttp.ClientSession, routes: Routes, inbound: Inbound, limit: float
) -> web.StreamResponse:
    """`GET /v1/models`: a list while any upstream gives one, else what they say, or 502. `limit`: as of `forward`."""
    if (only := _only(routes)) is not None:
        return await forward(session, inbound, only, limit)
    answers = await _ask_all(session, routes, inbound)
    if ANTHROPIC in inbound.request.headers:
        for answer in answers.values():
            if answer.is_anthropic:
                return answer.as_it_is
    if not any(answer.status == 200 for answer in answers.values()):
        return _no_list(routes, list(answers.values()))
    found = merged(routes, {url: answer.models for url, answer in answers.items()})
    return web.Response(body=orjson.dumps({"object": "list", "data": list(found.values())}), headers=JSON)


async def show_model(
    session: aiohttp.ClientSession, routes: Routes, inbound: Inbound, name: str, limit: float
) -> web.StreamResponse:
    """`GET /v1/models/{id}`: from the lists, for engines have no such path; what none lists, its provider is asked."""
    only = _only(routes)
    if only is not None and only.policy is None:
        return await forward(session, inbound, only, limit)
    answers = await _ask_all(session, routes, inbound, MODELS_PATH)
    found = merged(routes, {url: answer.models for url, answer in answers.items()})
    if name in found:
        return web.Response(body=orjson.dumps(found[name]), headers=JSON)
    if (route := next(iter(routes.candidates(name)), None)) is not None and route.policy is None:
        if route.served is not None:
            _, sign, query = inbound.path.partition("?")
            inbound.path = f"{MODELS_PATH}/{quote(route.served)}{sign}{query}"
        return await forward(session, inbound, route, limit)
    if not any(answer.status == 200 for answer in answers.values()):
        return _no_list(routes, list(answers.values()))
    message = f"The model `{name}` does not exist. Known here: {', '.join(found)}"
    return openai_error(404, message, code="model_not_found")


def _only(routes: Routes) -> Route | None:
    """The entry that all questions go to; None where there are several, or its upstream knows other names."""
    first, *others = routes.entries
    return first if not others and first.served is None else None


def _no_list(routes: Routes, refusals: Sequence[Listed]) -> web.Response:
    """No upstream has a list: what the only one that answered says, or all alike; else that none answers."""
    if len({refusal.status for refusal in refusals}) == 1:
        return refusals[0].as_it_is
    message = f"no upstream lists its models at {', '.join(routes.upstreams)}: start the model server"
    return openai_error(502, message, code="upstream_unreachable")


async def _ask_all(
    session: aiohttp.ClientSession, routes: Routes, inbound: Inbound, path: str | None = None
) -> dict[str, Listed]:
    """The answers by upstream; without those that do not answer."""
    sources: dict[str, Route] = {}
    for entry in routes.entries:
        for url in entry.upstreams:
            sources.setdefault(url, entry)
    asked = [_ask(session, route, url, inbound.request, path or inbound.path) for url, route in sources.items()]
    answers = zip(sources, await asyncio.gather(*asked), strict=True)
    return {url: answer for url, answer in answers if answer is not None}


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
    session: aiohttp.ClientSession, route: Route, url: str, request: web.BaseRequest, path: str
) -> Listed | None:
    headers = request_headers(request.headers, route.authorization)
    headers["accept-encoding"] = "identity"
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with session.get(
            upstream_url(url, path), headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            raw = await answer.read()
            body = orjson.loads(raw) if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError) as error:
        log.warning("upstream does not list its models url=%s problem=%s", url, error or type(error).__name__)
        return None
    return Listed(answer.status, answer.headers, raw, mapping(body))
