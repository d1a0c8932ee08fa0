"""HTTP plumbing between a client's request and an upstream: headers, addresses, the client session."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from sidecar.call import Call
from sidecar.dialect import Refusal
from sidecar.failures import TIMEOUT, stopping
from tracegrad import names
from tracegrad.http_client import HttpClient

HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
REPLACED = HOP_BY_HOP | {"host", "content-length", "content-encoding", "expect"}
"""What does not go to the upstream as it is: a model call's body is decoded here, our client frames it anew."""

LAST_WORD_S = 1.0
BARE_KEYS = ("x-api-key", "api-key")
"""Headers that hold nothing but a key, as Anthropic's and Azure's clients send it."""


@dataclass(eq=False)
class Inbound:
    """A model call as it came in. `path`: raw, with its query, without the rollout's prefix."""

    request: web.BaseRequest
    path: str
    raw: bytes = b""
    """The body, as the client sent it or with the prompt that replaced its own."""
    limit_s: float | None = None
    deadline: asyncio.Timeout | None = None
    stopped: bool = False
    """Its time is over because the sidecar stops."""

    def stop(self) -> None:
        """Its time is over now, as when its limit has passed."""
        self.stopped = True
        if self.deadline is not None:
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile, or is over anyway
                self.deadline.reschedule(asyncio.get_running_loop().time())

    @property
    def too_late(self) -> Refusal:
        """The answer once its time is over."""
        if self.stopped:
            return stopping()
        return Refusal(504, f"the call took longer than {self.limit_s} s: ask for less, or wait", TIMEOUT)

    async def end_late(self, response: web.StreamResponse, event: bytes | None) -> None:
        """End an answer that is under way when its time is over: with an error event, or (None) by breaking it off."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            if event is not None:
                async with asyncio.timeout(LAST_WORD_S):  # a client that does not read is what may have taken the time
                    await response.write(event)
                    await response.write_eof()
                return
        if self.request.transport is not None:
            self.request.transport.abort()

    @property
    def timed_out(self) -> bool:
        """Whether the time for the call is over."""
        return self.deadline is not None and self.deadline.expired()


KEEPALIVE_S = 2.0
"""Shorter than the 5 s after which vLLM closes an idle connection, so that no request is sent into a closed one."""


@dataclass(frozen=True)
class Clients:
    """The two ways to an upstream: a lean one to engines, a general one to everything else."""

    engines: HttpClient
    session: aiohttp.ClientSession


def client_session() -> aiohttp.ClientSession:
    """A session that changes nothing: no cookies, no decompression, no headers of its own, no time limit."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        auto_decompress=False,
        skip_auto_headers=[hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE],
        max_field_size=1 << 16,
        max_line_size=1 << 16,
    )


def control_session() -> aiohttp.ClientSession:
    """A session for our own questions to the engines, apart from the agents' connections."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S))


def upstream_url(base: str, path: str) -> URL:
    """The upstream's address of a raw path with its query, percent-encoding untouched."""
    return URL(base + path, encoded=True)


def request_headers(headers: Mapping[str, str], authorization: str | None) -> CIMultiDict[str]:
    """The client's headers for the upstream. `authorization` replaces the client's key, in the header in which it came.

    Empty: the client's key is dropped, because it is one of ours. None: it is passed on.
    """
    dropped = REPLACED | {name.strip().lower() for name in headers.get(hdrs.CONNECTION, "").split(",")}
    kept = CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
    if authorization is not None:
        bare = next((name for name in BARE_KEYS if name in kept), None)
        for name in (*BARE_KEYS, hdrs.AUTHORIZATION):
            kept.popall(name, None)
        if authorization and bare is not None:
            kept[bare] = authorization.removeprefix("Bearer ")
        elif authorization:
            kept[hdrs.AUTHORIZATION] = authorization
    return kept


def engine_headers(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """The same, changed in place, for a request that we wrote ourselves: JSON, its key where an engine looks for it."""
    headers[hdrs.CONTENT_TYPE] = "application/json"
    for name in BARE_KEYS:
        if (key := headers.pop(name, None)) is not None and hdrs.AUTHORIZATION not in headers:
            headers[hdrs.AUTHORIZATION] = f"Bearer {key}"
    return headers


def recorded_headers(headers: Mapping[str, str], authorization: str | None, call: Call) -> CIMultiDict[str]:
    """The same for a call we record: readable to us, and our span is the parent of what the upstream traces."""
    call.credentials = headers, authorization
    kept = request_headers(headers, authorization)
    kept[hdrs.ACCEPT_ENCODING] = "identity"
    kept["traceparent"] = call.identity.context.traceparent
    return kept


def response_headers(headers: Mapping[str, str], *, changed: bool) -> CIMultiDict[str]:
    """The upstream's headers for the client; `changed`: the body is no longer the one they measure."""
    dropped = HOP_BY_HOP | {name.strip().lower() for name in headers.get(hdrs.CONNECTION, "").split(",")}
    if changed:
        dropped |= {"content-length"}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def identity_headers(call: Call) -> dict[str, str]:
    """What the sidecar adds to the answer of a recorded call."""
    added = {
        names.HEADER_ROLLOUT_ID: call.identity.rollout_id,
        names.HEADER_SPAN_ID: call.identity.context.span_id.hex(),
    }
    if call.policy is not None and call.start is not None and call.start.version is not None:
        added[names.HEADER_POLICY] = f"{call.policy}@{call.start.version}"
    return added
