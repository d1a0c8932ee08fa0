"""Which engines are asked how they would write a prompt: not those that were slow to say so.

Invariant: a call waits at most `LIMIT_S` for it in all, and goes the ordinary road then. After `SLOW_IN_A_ROW` of those
an engine is left alone for `REST_S`, so that a busy one does not delay every call; one slow call more prolongs that.
Calls that wait at the same time count as one.
"""

import time

LIMIT_S = 0.25
SLOW_IN_A_ROW = 3
REST_S = 30.0


class Patience:
    """By engine, how often in a row calls waited in vain."""

    def __init__(self) -> None:
        self._slow: dict[str, tuple[int, float]] = {}
        """Calls, and the time of the last."""
        self._rests: dict[str, float] = {}

    def asks(self, url: str) -> bool:
        """Whether calls may wait for this engine now."""
        return time.monotonic() >= self._rests.get(url, 0.0)

    def quick(self, url: str) -> None:
        """It answered in time."""
        self._slow.pop(url, None)

    def slow(self, url: str) -> None:
        """It did not."""
        now = time.monotonic()
        count, last = self._slow.get(url, (0, -LIMIT_S))
        if now - last < LIMIT_S:
            return
        self._slow[url] = count + 1, now
        if count + 1 >= SLOW_IN_A_ROW:
            self._rests[url] = now + REST_S
