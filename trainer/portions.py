"""How much is asked of the store at once: ids in lists, each as long as its answer may be large.

What the store needs for a query beside what it reads is the same for one rollout as for a thousand, and far more than
reading one; while a query for many needs memory for all of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar
from urllib.parse import quote

from tracegrad.errors import TooLargeError

CHARACTERS = 4_000
"""Of ids, as they travel in a request's address; the driver puts longer lists into its body."""
MOST_CHARACTERS = 100_000
"""Of ids, in a body: ClickHouse takes 128 KiB of one value."""
BYTES = 24 << 20
"""That an answer is to have. The store needs five times as much meanwhile, or more if calls hold whole prompts."""
FIRST, MOST, FASTER = 64, 1_024, 4
"""Ids: as long as nothing is known of answers, at most, and how many times as many as before."""

Answer = TypeVar("Answer")


class Portions:
    """Lists of ids whose answers have about `BYTES`, going by those before, and that the store has memory for."""

    def __init__(self) -> None:
        self._count, self._most = FIRST, MOST

    def read(self, ids: Sequence[str], ask: Callable[[Sequence[str]], tuple[Answer, int]]) -> Iterator[Answer]:
        """What `ask` answers for all the ids, some at a time; it also says how many bytes that was.

        Where it raises TooLargeError it is asked for half as many, and never for more again; for a single one, that is
        raised.
        """
        begin = 0
        while begin < len(ids):
            portion = ids[begin : begin + self._count]
            try:
                answer, size = ask(portion)
            except TooLargeError:
                if len(portion) == 1:
                    raise
                self._count = self._most = len(portion) // 2
                continue
            begin += len(portion)
            fitting = len(portion) * BYTES // max(1, size)
            self._count = max(1, min(fitting, FASTER * self._count, self._most))
            yield answer


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
