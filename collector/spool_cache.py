"""Requests in memory from when they are appended until they are read, so that the disk is only written.

Invariant: what is held follows one another without a gap. When the reader falls behind by more than `limit_bytes`,
nothing is added until it has read what is held: then the rest comes from the files.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from collector.spool_cursor import NOWHERE, Position


@dataclass(frozen=True)
class Held:
    """A request and where its record begins and ends."""

    body: bytes
    start: Position
    end: Position
    put_ns: int


class Cache:
    """A queue of what was appended last. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: deque[Held] = deque()
        self._bytes = 0
        self._end = NOWHERE

    def add(self, appended: Sequence[Held]) -> None:
        """What was appended after all that was added before."""
        size = sum(len(one.body) for one in appended)
        if self._bytes + size > self._limit_bytes or (self._held and self._end != appended[0].start):
            self._end = NOWHERE
            return
        self._held.extend(appended)
        self._bytes += size
        self._end = appended[-1].end

    def stop(self, start: Position, stop: int) -> int:
        """Up to where files are to be read from `start`, which is not held, in a segment that ends at `stop`."""
        held = self._held[0].start if self._held else NOWHERE
        return held.offset if held > start and held.segment == start.segment else stop

    def take(self, start: Position, limit: int) -> list[Held]:
        """What begins at `start`, of one segment, `limit` bytes at most or one; none when that is not held."""
        while self._held and self._held[0].start < start:
            self._drop()
        taken: list[Held] = []
        size = 0
        while self._held and self._held[0].start == start:
            size += len(self._held[0].body)
            if taken and size > limit:
                break
            taken.append(self._drop())
            start = taken[-1].end
        return taken

    def _drop(self) -> Held:
        held = self._held.popleft()
        self._bytes -= len(held.body)
        return held
