"""The access log: one JSON object per request of the agents' port, on one line.

Invariants: a request never waits for it and never fails by it; what cannot be written (disk full, reader gone, more
than `MAX_PENDING_BYTES` waiting) is counted in `lost`; no query, header or body is in it, so that no key can be.
Several workers append to one file, whole lines at a time.
"""

import contextlib
import logging
import os
import queue
import stat
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web

from sidecar.call import DISCONNECTED, Call
from sidecar.metrics import CLIENT_CLOSED
from tracegrad.errors import SettingsError

log = logging.getLogger(__name__)

OFF, STANDARD_OUTPUT = "off", "-"
MAX_PENDING_BYTES = 8 << 20
MAX_TEXT = 200
"""Of the characters of one name; more would be a client's mischief."""
GATHER_S = 0.2
CLOSE_S = 2.0
_REOPEN, _END = object(), object()


@dataclass(slots=True)
class Visit:
    """What becomes known of one request on its way."""

    started_ns: int
    tenant: str = ""
    call: Call | None = None
    """None: no model call."""
    error: str | None = None
    """The code of a refusal, where there is no call."""


class AccessLog:
    """Writes lines from a thread of its own. `destination`: `-` or a path. Raises SettingsError where it cannot be."""

    def __init__(self, destination: str, worker: int = 0) -> None:
        self.destination = destination
        self.lost = 0
        """Lines that were not written."""
        self._worker = worker
        self._file = _open(destination)
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._put_bytes = self._taken_bytes = 0
        self._torn = False
        self._thread = threading.Thread(target=self._write_all, name="access-log", daemon=True)
        self._thread.start()

    def note(
        self, request: web.BaseRequest, response: web.StreamResponse | None, visit: Visit, *, stopping: bool
    ) -> None:
        """Write a line about a request that has ended. `response` None: it was cut off, or failed."""
        line = orjson.dumps(describe(request, response, visit, self._worker, stopping=stopping)) + b"\n"
        if self._put_bytes - self._taken_bytes + len(line) > MAX_PENDING_BYTES:
            self.lost += 1
            return
        self._put_bytes += len(line)
        self._lines.put(line)

    def reopen(self) -> None:
        """Go on in a new file of the same name, since the old one was moved away."""
        self._lines.put(_REOPEN)

    def close(self) -> None:
        """Write what waits, for at most `CLOSE_S`: the reader of a pipe may have stopped reading."""
        self._lines.put(_END)
        self._thread.join(CLOSE_S)

    def _write_all(self) -> None:
        ended = False
        while not ended:
            batch = [self._lines.get()]
            if batch[0] is not _END:
                time.sleep(GATHER_S)
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._lines.get_nowait())
            lines: list[bytes] = []
            for item in batch:
                if item is _REOPEN:
                    self._write(lines)
                    lines = []
                    self._reopen()
                elif item is _END:
                    ended = True
                else:
                    lines.append(item)
            self._write(lines)
        if self.destination != STANDARD_OUTPUT:
            os.close(self._file)

    def _write(self, lines: list[bytes]) -> None:
        self._taken_bytes += sum(map(len, lines))
        # A pipe keeps together only what is written a piece at a time.
        regular = stat.S_ISREG(os.fstat(self._file).st_mode)
        for part in ([b"".join(lines)] if regular else lines) if lines else []:
            whole = b"\n" + part if self._torn else part
            written = 0
            try:
                written = os.write(self._file, whole)
            except OSError as error:
                if self.lost == 0:
                    log.warning("access log cannot be written path=%s problem=%s", self.destination, error)
            if written < len(whole):
                self.lost += whole[written:].count(b"\n")
            self._torn = 0 < written < len(whole) or (self._torn and not written)

    def _reopen(self) -> None:
        if self.destination == STANDARD_OUTPUT:
            return
        try:
            opened = _open(self.destination)
        except SettingsError as error:
            log.warning("access log goes on in the old file problem=%s", error)
            return
        os.close(self._file)
        self._file, self._torn = opened, False


def open_access_log(destination: str, worker: int = 0) -> AccessLog | None:
    """The log that `[sidecar] access_log` asks for; None where it is off. Raises SettingsError."""
    return None if destination == OFF else AccessLog(destination, worker)


def require_writable(destination: str) -> None:
    """Raise SettingsError where this process could not write there."""
    if destination not in (OFF, STANDARD_OUTPUT):
        os.close(_open(destination))


def _open(destination: str) -> int:
    if destination == STANDARD_OUTPUT:
        return sys.stdout.fileno()
    try:
        return os.open(destination, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
    except OSError as error:
        raise SettingsError(f"no access log at {destination} ({error.strerror}): choose another path") from error


def describe(
    request: web.BaseRequest, response: web.StreamResponse | None, visit: Visit, worker: int, *, stopping: bool
) -> dict[str, Any]:
    """One line's object. `bytes_in`: of the body; `bytes_out`: of the whole answer, headers included."""
    call = visit.call
    now_ns = time.time_ns()
    entry: dict[str, Any] = {
        "time": datetime.fromtimestamp(visit.started_ns / 1e9, UTC).isoformat(timespec="milliseconds"),
        "method": _short(request.method),
        "path": _short(request.raw_path.partition("?")[0], 5 * MAX_TEXT),
        "status": _status(response, call, stopping=stopping),
        "duration_ms": round((now_ns - visit.started_ns) / 1e6, 3),
        "bytes_in": request.content.total_bytes,
        "bytes_out": request.writer.output_size,
        "tenant": visit.tenant or None,
        "error": visit.error,
        "worker": worker,
    }
    if call is not None:
        context = call.identity.context
        entry |= {
            "model": _short(call.model),
            "rollout_id": call.identity.rollout_id,
            "trace_id": context.trace_id.hex(),
            "span_id": context.span_id.hex(),
            "policy": call.policy,
            "version": call.start.version if call.start is not None else None,
            "replica": call.replica.url if call.replica is not None else call.upstream,
            "stream": call.body.get("stream") is True,
            "error": call.error_type,
        }
    return entry


def _status(response: web.StreamResponse | None, call: Call | None, *, stopping: bool) -> int:
    if call is not None and call.error_type == DISCONNECTED:
        return CLIENT_CLOSED
    if response is not None:
        return response.status
    return 503 if stopping else CLIENT_CLOSED if call is None or call.status is None else call.status


def _short(text: str, limit: int = MAX_TEXT) -> str:
    return text.encode(errors="replace").decode(errors="replace")[:limit]
