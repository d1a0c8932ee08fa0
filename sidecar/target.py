"""Where a request wants to go, by its request line: a path, after `/rollout/{id}[/attempt/{n}]` where that names one.

Invariant: what begins with `/rollout/` is for us. It is taken whole or refused, and never passed on with an id that
nobody would find on a span.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from sidecar.dialect import Refusal

MAX_ID = 200
MAX_ATTEMPT = 10**9 - 1
ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_ID}}}")
BAD_ROLLOUT, BAD_TARGET = "invalid_rollout_id", "invalid_target"

_PREFIX = "/rollout/"
_ROLLOUT_PATH = re.compile(r"/rollout/([^/?]*)(?:/attempt/([^/?]*))?(/v1(?:[/?].*)?)")
_SERVER = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """The upstream's own path with its query, and the rollout that its prefix named."""

    path: str
    rollout_id: str | None
    attempt: int


def split_target(raw: str, method: str = "POST") -> Target:
    """Read a request line's target. Raises Refusal where nothing here can be meant by it."""
    if not raw.startswith("/"):
        raw = _path_of(raw, method)
    if not raw.startswith(_PREFIX):
        return Target(raw, None, 0)
    match = _ROLLOUT_PATH.fullmatch(raw)
    if match is None:
        raise Refusal(404, "a path with a rollout reads /rollout/ID/v1/... or /rollout/ID/attempt/N/v1/...", BAD_TARGET)
    return Target(match[3], checked_id(unquote(match[1]), "the rollout id in the path"), _attempt(match[2]))


def checked_id(rollout_id: str, what: str) -> str:
    """The id. Raises Refusal (400) where no span could have it."""
    if not rollout_id:
        problem = "is empty"
    elif len(rollout_id) > MAX_ID:
        problem = f"has {len(rollout_id)} characters, and may have {MAX_ID}"
    elif not ID.fullmatch(rollout_id):
        problem = "must be printable ASCII without spaces"
    else:
        return rollout_id
    raise Refusal(400, f"{what} {problem}", BAD_ROLLOUT)


def _attempt(text: str | None) -> int:
    if text is None:
        return 0
    if not re.fullmatch("[0-9]+", text):
        raise Refusal(400, f"the attempt in the path must be a number: {text[:40]!r} is none", BAD_ROLLOUT)
    if len(text) > len(str(MAX_ATTEMPT)):
        raise Refusal(400, f"the attempt in the path may be {MAX_ATTEMPT} at most", BAD_ROLLOUT)
    return int(text)


def _path_of(raw: str, method: str) -> str:
    """The path of a target that is none: an address, as clients send it to a proxy, names the same path here."""
    if (server := _SERVER.match(raw)) is not None:
        rest = raw[server.end() :]
        return rest if rest.startswith("/") else f"/{rest}"
    if method == "CONNECT":
        message = "this is no proxy for other hosts: set the client's base URL to it, and not its HTTP(S)_PROXY"
        raise Refusal(405, message, BAD_TARGET, {"allow": "GET, POST"})
    if raw == "*":
        raise Refusal(400, f"{method} * is not answered here: ask for a path, such as /v1/models", BAD_TARGET)
    raise Refusal(400, "the target of a request must be a path, such as /v1/models", BAD_TARGET)
