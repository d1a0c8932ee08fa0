"""How calls fail upstream: the words for it, on spans and in answers."""

import orjson
from aiohttp import web

from sidecar.call import Call
from sidecar.chat_answer import mapping, text
from sidecar.dialect import Dialect, Refusal

UNREACHABLE, DIED, TIMEOUT = "upstream_unreachable", "upstream_died", "timeout"


def unreachable(dialect: Dialect, call: Call, upstreams: str) -> web.Response:
    """The answer when no upstream takes the connection."""
    message = f"no upstream answers at {upstreams}: start the model server, or correct `upstream` of [[model]]"
    call.status = 502
    call.fail(UNREACHABLE, message)
    return dialect.error(Refusal(502, message, UNREACHABLE))


def error_message(body: bytes, status: str) -> str:
    """What an upstream's error answer says; `status` where it says nothing."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    error = mapping(answer).get("error")
    return text(mapping(error).get("message")) or text(error) or text(mapping(answer).get("message")) or status
