"""Chunks on their way to a client: as they came where nothing was hidden in them, and held back where one must wait.

A stream with a usage chunk has `system_fingerprint` on that; one without has it on the chunks that finish a choice. So
where only we asked for usage, those are held back until it comes, which is at once unless n > 1; and only until the
engine's fingerprint is known from an earlier stream.
"""

from typing import Any

import orjson

Json = dict[str, Any]


class Held:
    """What waits for the usage chunk."""

    def __init__(self) -> None:
        self.mark: Json | None = None
        """What the engine adds to finishing chunks, by an earlier stream of it; None: not known, so they wait."""
        self.told: Json | None = None
        """The same by this very stream."""
        self._waiting: list[tuple[Json, bytes | None]] = []

    def hold(self, chunk: Json, raw: bytes | None) -> bytes:
        """A finishing chunk, or nothing while it waits. `raw`: the event as it came, where nothing was changed."""
        if self.mark is not None:
            return self._marked(chunk, raw)
        self._waiting.append((chunk, raw))
        return b""

    def release(self, usage: Json) -> bytes:
        """What waited for this usage chunk."""
        fingerprint = usage.get("system_fingerprint")
        self.mark = self.told = {} if fingerprint is None else {"system_fingerprint": fingerprint}
        waiting, self._waiting = self._waiting, []
        return b"".join(self._marked(chunk, raw) for chunk, raw in waiting)

    def flush(self) -> bytes:
        """What waits, where the stream goes on without such a chunk."""
        waiting, self._waiting = self._waiting, []
        return b"".join(raw or encoded(chunk) for chunk, raw in waiting)

    def _marked(self, chunk: Json, raw: bytes | None) -> bytes:
        if self.mark and "system_fingerprint" not in chunk:
            return encoded(chunk | self.mark)
        return raw or encoded(chunk)


def blanked(holder: Json, name: str) -> bool:
    """Make a value null; whether it was there and was not null."""
    if holder.get(name) is None:
        return False
    holder[name] = None
    return True


def encoded(chunk: Json) -> bytes:
    """A chunk as an event."""
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
