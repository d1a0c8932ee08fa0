"""Which place on the board belongs to which engine. An engine keeps its place for as long as it is configured, also
over restarts, so that what is known of one engine is never taken for another's.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from tracegrad.errors import SettingsError, TracegradError

CAPACITY = 64
FILE = "places.json"


def capacity(engines: int) -> int:
    """Places for so many engines, and for some that come later."""
    return max(CAPACITY, 2 * engines)


def placed(urls: Iterable[str], before: Mapping[str, int], places: int) -> dict[str, int]:
    """A place for each URL: the one it had, else a free one. Raises SettingsError where there are too few."""
    wanted = tuple(urls)
    chosen = {url: before[url] for url in wanted if url in before and before[url] < places}
    # Those of engines that have just left come last: calls may still be counted there.
    left = [place for url, place in before.items() if url not in chosen and place < places]
    taken = {*chosen.values(), *left}
    free = [*(place for place in range(places) if place not in taken), *left]
    for url in wanted:
        if url not in chosen:
            if not free:
                raise SettingsError(f"there are places for {places} engines: restart the sidecar to serve more")
            chosen[url] = free.pop(0)
    return chosen


def load_places(data: Path) -> dict[str, int]:
    """The places of the last run; empty where there was none, or its file is damaged."""
    try:
        found = orjson.loads((data / FILE).read_bytes())
        return {str(url): int(place) for url, place in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def save_places(data: Path, places: Mapping[str, int]) -> None:
    """Keep them for the next run. Raises TracegradError."""
    fresh = data / f"{FILE}.{os.getpid()}"
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.write_bytes(orjson.dumps(places))
        fresh.replace(data / FILE)
    except OSError as error:
        raise TracegradError(f"{data} cannot be written ({error.strerror}): set [sidecar] data") from error
