"""How long after its acknowledgement a span can be queried: markers are asked for until they are there.

One question at a time asks for all that are missing: where the store falls behind, looking must not hold it up further.
"""

import asyncio
import time

from tracegrad.bench.collector_spans import MARKER, SERVICE
from tracegrad.http_client import HttpClient

LOOK_S = 0.02
"""Between two questions."""
PATIENCE_S = 60.0
_FIND = "SELECT SpanName FROM otel.otel_traces WHERE ServiceName = '{}' AND SpanName IN ({}) FORMAT TabSeparated"


class Markers:
    """Those of one load."""

    def __init__(self, port: int) -> None:
        self.queryable_ms: list[float] = []
        """From an acknowledgement until an answer had the marker."""
        self.problem = ""
        self._url = f"http://127.0.0.1:{port}"
        self._missing: dict[str, float] = {}
        self._client = HttpClient(PATIENCE_S)
        self._task: asyncio.Task[None] | None = None

    def acknowledged(self, serial: int) -> None:
        """The request with this number, a marker, was acknowledged now."""
        self._missing[MARKER % serial] = time.monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())

    async def finish(self) -> None:
        """Wait until all were found, or `problem` says what went wrong."""
        if self._task is not None:
            await self._task
        self._client.close()

    async def _look(self) -> None:
        while self._missing and not self.problem:
            await self._ask()
            oldest = min(self._missing.values(), default=None)
            if oldest is not None and time.monotonic() - oldest > PATIENCE_S:
                self.problem = f"a span that was acknowledged cannot be queried after {PATIENCE_S:.0f} s"
            await asyncio.sleep(LOOK_S)

    async def _ask(self) -> None:
        sql = _FIND.format(SERVICE, ", ".join(f"'{name}'" for name in self._missing))
        try:
            async with self._client.post(self._url, "/", {}, sql.encode()) as reply:
                answer = await reply.read()
        except OSError as error:
            self.problem = f"a query failed: {error}"
            return
        if reply.status != 200:
            self.problem = f"a query was answered with status {reply.status}: {answer[:300]!r}"
            return
        now = time.monotonic()
        for name in answer.decode().split():
            if (since := self._missing.pop(name, None)) is not None:
                self.queryable_ms.append((now - since) * 1e3)
