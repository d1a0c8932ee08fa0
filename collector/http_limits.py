"""How the HTTP ports meet what is no HTTP: it is answered 400, counted, and logged in one line now and then.

Invariant: no traceback but of our own faults, and no line with what was sent, since that may be a key.
"""

import logging
import time
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from collector import metrics

log = logging.getLogger(__name__)

LINGER_S = 2.0
"""So long the rest of a refused body is taken in and dropped, so that its sender gets to read the refusal."""
BURST_S = 10.0


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp's server logs to."""

    def __init__(self) -> None:
        super().__init__(log, {})
        self._unsaid = 0
        self._quiet_until = 0.0

    def debug(self, msg: object, *args: object, **more: Any) -> None:
        """Requests in no known method, such as TLS to a port without, come this way."""
        if not self._is_the_clients(more.get("exc_info")):
            super().debug(msg, *args, **more)

    def exception(self, msg: object, *args: object, **more: Any) -> None:
        """A request could not be read, or its handler failed."""
        if not self._is_the_clients(more.get("exc_info")):
            super().exception(msg, *args, **more)

    def _is_the_clients(self, error: object) -> bool:
        if isinstance(error, ConnectionError):
            return True
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return False
        metrics.BAD_HTTP.add()
        self._unsaid += 1
        if (now := time.monotonic()) >= self._quiet_until:
            log.info("what came is no HTTP problem=%s count=%d", type(error).__name__, self._unsaid)
            self._unsaid, self._quiet_until = 0, now + BURST_S
        return True
