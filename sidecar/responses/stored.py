"""What a client may ask about a stored response: itself, its input, and to forget it."""

import re
from collections.abc import Mapping

import orjson
from aiohttp import web

from sidecar.dialect import Refusal
from sidecar.openai_error import JSON
from sidecar.responses.store import Stored, StoreError
from sidecar.responses.store_thread import StoreThread

_PATH = re.compile(r"/v1/responses/(resp_[\w-]+)(/input_items|/cancel)?")
MAX_PAGE, PAGE = 100, 20


async def about_stored(store: StoreThread, tenant: str, request: web.BaseRequest, path: str) -> web.Response | None:
    """The answer; None where the request is about no response that this tenant has here. Raises Refusal."""
    if (asked := _PATH.fullmatch(path)) is None:
        return None
    method = request.method
    try:
        if method == "DELETE" and asked[2] is None and await store.delete(tenant, asked[1]):
            return _json({"id": asked[1], "object": "response.deleted", "deleted": True})
        if (stored := await store.get(tenant, asked[1])) is None:
            return None
        if method == "GET" and asked[2] is None:
            return _show(stored, request.query)
        if method == "GET" and asked[2] == "/input_items":
            return _list_input(await store.chain(tenant, asked[1]) or [stored], request.query)
    except StoreError as error:
        raise unreadable(error) from error
    if method == "POST" and asked[2] == "/cancel":
        raise Refusal(400, "only responses in the background can be cancelled: close the connection instead")
    return None


def names_response(path: str) -> str | None:
    """The id in a path that is about one response."""
    asked = _PATH.fullmatch(path)
    return asked[1] if asked else None


def unreadable(error: StoreError) -> Refusal:
    """The answer while the file cannot be used."""
    return Refusal(503, f"stored responses cannot be read ({error}): ask the operator of the sidecar", "store_failed")


def _show(stored: Stored, query: Mapping[str, str]) -> web.Response:
    if query.get("stream") == "true":
        raise Refusal(400, "only responses in the background can be streamed again: leave `stream` out")
    return _json(stored.response)


def _list_input(chain: list[Stored], query: Mapping[str, str]) -> web.Response:
    """All items the response was made from, those of the responses it continues among them."""
    items = [item for earlier in chain[:-1] for item in (*earlier.input, *earlier.response["output"])]
    items += chain[-1].input
    order, limit = query.get("order", "desc"), query.get("limit", str(PAGE))
    if order not in ("asc", "desc") or not limit.isdecimal() or not 1 <= int(limit) <= MAX_PAGE:
        raise Refusal(400, f"`order` must be asc or desc, and `limit` from 1 to {MAX_PAGE}")
    if order == "desc":
        items.reverse()
    if after := query.get("after"):
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise Refusal(400, f"`after` names {after!r}, which is not among the items")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return _json({"object": "list", "data": page, **ends, "has_more": len(page) < len(items)})


def _json(value: object) -> web.Response:
    return web.Response(body=orjson.dumps(value), headers=JSON)
