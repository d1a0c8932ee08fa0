"""What the tests of the spool share: a spool of small files, and what happens to it."""

from pathlib import Path
from typing import Any

from collector.spool import Batch, Spool

LIMIT = 1 << 20
SEGMENT = 16 << 10


def opened(directory: Path, **options: Any) -> Spool:
    """A spool of small files."""
    return Spool(directory, **{"max_bytes": LIMIT, "segment_bytes": SEGMENT, "fsync": "off", **options})


def die(spool: Spool) -> None:
    """What the kernel does when a process is killed: its files are closed, and nothing else happens."""
    spool._ledger.abandon()
    for segment in spool._files:
        segment.close()


def batches(spool: Spool, limit: int = 4 << 10) -> list[Batch]:
    """All that was not read yet."""
    found = []
    while (batch := spool.read(limit)) is not None:
        found.append(batch)
    return found


def held(found: list[Batch]) -> list[bytes]:
    """The requests of the batches."""
    return [bytes(record) for batch in found for record in batch.records]


def drain(spool: Spool) -> list[bytes]:
    """All there is, stored."""
    found = []
    while (batch := spool.read(4 << 10)) is not None:
        spool.begin(batch)
        found += held([batch])
        spool.done(batch)
    return found


def records(count: int, size: int = 1000) -> list[bytes]:
    """Requests, no two alike."""
    return [f"{number:06d}".encode() * (size // 6) for number in range(count)]


def fill(spool: Spool, wanted: list[bytes], group: int = 3) -> None:
    """Append them in groups."""
    for first in range(0, len(wanted), group):
        spool.append(wanted[first : first + group])


def segments(directory: Path) -> list[Path]:
    """Its files, oldest first."""
    return sorted(directory.glob("*.segment"))
