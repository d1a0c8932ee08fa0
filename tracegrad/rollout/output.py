"""An agent's standard output or error: read to the end, the last part kept, nothing written to disk.

It travels through a named pipe, so that a process that we do not start ourselves (a forked agent) can open it by path.
"""

import asyncio
import os
from collections import deque
from pathlib import Path

KEPT_BYTES = 1 << 20


class Output:
    """One stream of one agent, being read until `close`. Needs a running event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.total_bytes = 0
        self._chunks: deque[bytes] = deque()
        self._kept = 0
        self._ended = asyncio.Event()
        os.mkfifo(path, 0o600)
        self._read_end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        # Held until the agent has ended: without any writer the pipe would count as finished.
        self.write_end = os.open(path, os.O_WRONLY)
        asyncio.get_running_loop().add_reader(self._read_end, self._read)

    def _read(self) -> None:
        try:
            chunk = os.read(self._read_end, 1 << 18)
        except BlockingIOError:
            return
        if not chunk:
            self._stop()
            return
        self.total_bytes += len(chunk)
        self._chunks.append(chunk)
        self._kept += len(chunk)
        while self._kept - len(self._chunks[0]) >= KEPT_BYTES:
            self._kept -= len(self._chunks.popleft())

    async def close(self, timeout_s: float) -> bytes:
        """Wait until every writer has closed the stream, at most `timeout_s`; returns the last KEPT_BYTES."""
        os.close(self.write_end)
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:  # a process that left the run's group holds it open
            pass
        finally:
            self._stop()
            self.path.unlink(missing_ok=True)
        return b"".join(self._chunks)[-KEPT_BYTES:]

    def _stop(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            asyncio.get_running_loop().remove_reader(self._read_end)
            os.close(self._read_end)


def tail_text(content: bytes, total_bytes: int, limit: int) -> str:
    """The last `limit` bytes as text, saying first how much is missing, if any."""
    kept = content[-limit:].decode("utf-8", "replace")
    missing = total_bytes - min(len(content), limit)
    return f"[{missing} bytes before this were not kept]\n{kept}" if missing > 0 else kept
