"""What the spool gives to its reader, and what it says of itself."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from collector.spool_aside import Losses
from collector.spool_cursor import Position
from collector.spool_segment import HEAD, Record


class SpoolFullError(Exception):
    """The requests would exceed the limit: none of them is in."""


@dataclass(eq=False)
class Batch:
    """Requests that follow one another in one segment; never none.

    `name` says which, and nothing else ever has it. `in_doubt`: an earlier process may have stored some or all of them;
    what it had begun is read again as the same batch, unless it is damaged since.
    """

    name: str
    records: Sequence[Record]
    start: Position
    end: Position
    seed: int
    """Of numbers, random and the same for all of its segment."""
    put_ns: int
    """When the first was appended, since the epoch."""
    in_doubt: bool
    finished: bool = False

    @property
    def numbers(self) -> list[int]:
        """The first of each request's own numbers, below 2**64: at least as many as it has bytes.

        They are the same whenever it is read. Another request, of whatever spool, has others, but for a chance of one
        in 2**33 with each segment that ever was.
        """
        sizes = (HEAD + len(record) for record in self.records[:-1])
        return list(itertools.accumulate(sizes, initial=self.seed + self.start.offset))

    @property
    def end_number(self) -> int:
        """The first number after those of all its requests."""
        return self.seed + self.end.offset

    @property
    def size(self) -> int:
        """Bytes of the requests, without what surrounds them."""
        return sum(map(len, self.records))


@dataclass(frozen=True)
class Figures:
    """What is waiting is what is not done. `waiting_records` leaves out what earlier processes left and is not read."""

    waiting_bytes: int
    waiting_records: int
    in_doubt_bytes: int
    oldest_age_s: float
    segments: int
    losses: Losses
