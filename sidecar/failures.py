"""How calls fail upstream: the words for it, on spans and in answers."""

import orjson
from aiohttp import web

from sidecar.call import ERROR, Call
from sidecar.chat_answer import ABORTED, mapping, text
from sidecar.dialect import Dialect, Refusal

UNREACHABLE, DIED, TIMEOUT, SHUTDOWN = "upstream_unreachable", "upstream_died", "timeout", "shutdown"
INVALID_ANSWER = "invalid_answer"


def unreachable(dialect: Dialect, call: Call, upstreams: str) -> web.Response:
    """The answer when no upstream takes the connection."""
    message = f"no upstream answers at {upstreams}: start the model server, or correct `upstream` of [[model]]"
    call.status = 502
    call.fail(UNREACHABLE, message)
    return dialect.error(Refusal(502, message, UNREACHABLE))


def stopping() -> Refusal:
    """The answer to what the end of the process cuts off."""
    return Refusal(503, "the sidecar stops before the answer has ended: try again", SHUTDOWN, {"retry-after": "1"})


def note_refusal(call: Call, refusal: Refusal) -> None:
    """Note that a call ended with this refusal. What the end of the process cuts off was no fault of the call."""
    untrainable = ABORTED if refusal.code == SHUTDOWN else ERROR
    call.fail(refusal.code or str(refusal.status), refusal.message, untrainable)


def answered(url: str | None, status: int, reason: str | None) -> str:
    """Which upstream answered what, for where its answer tells nothing more."""
    return f"upstream at {url} answered {status} {reason or ''}".rstrip()


def error_message(body: bytes, status: str) -> str:
    """What an upstream's error answer says; `status` where it says nothing."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    error = mapping(answer).get("error")
    return text(mapping(error).get("message")) or text(error) or text(mapping(answer).get("message")) or status
