"""How much is asked of the store at once: ids in lists, each as long as its answer may be large.

What the store needs for a query beside what it reads is the same for one rollout as for a thousand, and far more than
reading one; while a query for many needs memory for all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

CHARACTERS = 4_000
"""Of ids, as they travel in a request's address; the driver puts longer lists into its body."""
MOST_CHARACTERS = 100_000
"""Of ids, in a body: ClickHouse takes 128 KiB of one value."""
BYTES = 32 << 20
"""That an answer is to have. The store needs about four times as much meanwhile."""
FIRST, MOST, FASTER = 64, 1_024, 4
"""Ids: as long as nothing is known of answers, at most, and how many times as many as before."""


class Portions:
    """Lists of ids whose answers have about `BYTES`, going by the answers before."""

    def __init__(self) -> None:
        self._count = FIRST

    def of(self, ids: Sequence[str]) -> Iterator[Sequence[str]]:
        """All the ids, in lists; tell of each answer before the next list is asked for."""
        begin = 0
        while begin < len(ids):
            portion = ids[begin : begin + self._count]
            begin += len(portion)
            yield portion

    def brought(self, count: int, size: int) -> None:
        """An answer for `count` ids had `size` bytes."""
        self._count = max(1, min(count * BYTES // max(1, size), FASTER * self._count, MOST))


def chunks(ids: Iterable[str], characters: int = CHARACTERS) -> list[list[str]]:
    """All the ids, once each, in lists that one query can carry; no list for no ids."""
    found: list[list[str]] = []
    room = 0
    for name in sorted(set(ids)):
        length = len(quote(f"'{name}',", safe=""))
        if length > room:
            found.append([])
            room = characters
        found[-1].append(name)
        room -= length
    return found
