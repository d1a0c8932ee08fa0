"""Where the time of a step goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Seconds:
    """Wall-clock seconds by phase: `with seconds("update"): ...`."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time of the block to `phase`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[phase] = self._spent.get(phase, 0.0) + time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        """One entry per phase, `seconds_PHASE`."""
        return {f"seconds_{phase}": round(spent, 4) for phase, spent in self._spent.items()}
