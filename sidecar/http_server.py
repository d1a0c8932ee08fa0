"""How the ports speak HTTP: the limits of what is taken in, and what is said of those who speak something else.

Invariant: whatever a client sends, the log gets no traceback of it and at most one line per `BURST_S`: what is no HTTP
is answered 400 and counted, a client that has gone is no news. Tracebacks are of our own faults. No line holds what was
sent, since that may be a key.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

MAX_HEADER_BYTES = 1 << 16
"""Of one header, and of the request line."""
LINGER_S = 2.0
"""So long the rest of a refused body is taken in and dropped, so that its client gets to read the refusal."""
BURST_S = 10.0
BAD_HTTP = "bad_http"

log = logging.getLogger(__name__)


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp's server logs to."""

    def __init__(self, refusals: Counter[str]) -> None:
        super().__init__(log, {})
        self._refusals = refusals
        self._unsaid = 0
        self._quiet_until = 0.0

    def debug(self, msg: object, *args: object, **more: Any) -> None:
        """Requests in no known method, such as TLS, come this way."""
        if not self._note(more.get("exc_info"), args):
            super().debug(msg, *args, **more)

    def exception(self, msg: object, *args: object, **more: Any) -> None:
        """A request could not be read, or its handler failed."""
        if not self._note(more.get("exc_info"), args):
            super().exception(msg, *args, **more)

    def _note(self, error: object, args: tuple[object, ...]) -> bool:
        """Whether the client is what failed."""
        if isinstance(error, ConnectionError):
            return True
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return False
        self._refusals[BAD_HTTP] += 1
        self._unsaid += 1
        if (now := time.monotonic()) >= self._quiet_until:
            who = args[0] if args else "unknown"
            log.info("what came is no HTTP from=%s problem=%s count=%d", who, type(error).__name__, self._unsaid)
            self._unsaid, self._quiet_until = 0, now + BURST_S
        return True


def agents_server(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], refusals: Counter[str]
) -> web.Server:
    """A server with one handler for all paths, which needs no router. Bodies come as they are, also compressed ones."""
    return web.Server(
        handler,
        access_log=None,
        handler_cancellation=True,
        lingering_time=LINGER_S,
        auto_decompress=False,
        **_limits(refusals),
    )


def operators_runner(app: web.Application, refusals: Counter[str], shutdown_s: float) -> web.AppRunner:
    """The same limits for an application."""
    return web.AppRunner(app, access_log=None, shutdown_timeout=shutdown_s, **_limits(refusals))


def _limits(refusals: Counter[str]) -> dict[str, Any]:
    return {"logger": ServerLog(refusals), "max_line_size": MAX_HEADER_BYTES, "max_field_size": MAX_HEADER_BYTES}
