"""Server-sent events out of a byte stream that may be cut anywhere: in a line end, in a character, in a number.

Invariant: the raw bytes of all events, joined, and what `rest` holds are the bytes that were fed, in order.
"""

import re
from dataclasses import dataclass

MAX_EVENT_BYTES = 64 << 20
DONE = b"[DONE]"

_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Event:
    """One event. `data` None: it had no data line (a comment, a keep-alive)."""

    raw: bytes
    data: bytes | None

    @staticmethod
    def last(rest: bytes) -> "Event":
        """What a stream ended with, although no blank line ended it."""
        return Event(rest, _data(rest))


class EventTooLargeError(ValueError):
    """One event exceeds `MAX_EVENT_BYTES`."""


class EventReader:
    """Feed it bytes as they come; it returns the events that are complete."""

    def __init__(self) -> None:
        self._buffer = b""
        self._searched = 0

    @property
    def rest(self) -> bytes:
        """The bytes of an event that has not ended."""
        return self._buffer

    def feed(self, received: bytes) -> list[Event]:
        """The events that `received` completes. Raises EventTooLargeError."""
        buffer = self._buffer + received
        if b"\r" not in buffer:
            *parts, self._buffer = buffer.split(b"\n\n")
            events = [Event(raw := part + b"\n\n", _data(raw)) for part in parts]
        else:
            events, start = [], 0
            for end in _END.finditer(buffer, self._searched):
                events.append(Event(raw := buffer[start : end.end()], _data(raw)))
                start = end.end()
            self._buffer = buffer[start:]
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"a server-sent event is longer than {MAX_EVENT_BYTES} bytes")
        self._searched = max(0, len(self._buffer) - 3)
        return events


def _data(raw: bytes) -> bytes | None:
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and raw.find(b"\r") < 0:
        return raw[6:-2]  # one line and the blank one: nearly every event
    lines = [
        line[5:].removeprefix(b" ") for line in _LINE_END.split(raw) if line.startswith(b"data:") or line == b"data"
    ]
    return b"\n".join(lines) if lines else None
