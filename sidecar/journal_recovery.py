"""What dead processes left in their journals (`sidecar.journal`) becomes a file of the spool.

Invariant: a span that went into the spool does not come back, also where its process died before it noted that: it is
looked for in the files that were written since it was journalled. So this may be broken off, and done again.
"""

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sidecar import journal, spool_segment
from sidecar.journal import HEADER, MAGIC, SETTLED
from sidecar.spool_aside import set_aside
from sidecar.spool_segment import HEAD, RECORD_HEAD, DamagedError, Segment, scan

log = logging.getLogger(__name__)

ID_BYTES = 28
"""A span begins with its trace id and span id, and their tags: no two are alike."""


@dataclass(frozen=True)
class Recovered:
    """How many spans, and how many damaged stretches there were."""

    spans: int
    torn: int


@dataclass(frozen=True)
class _Left:
    """A span that is not settled."""

    written_ns: int
    record: bytes


def recover(directory: Path, root: Path) -> Recovered:
    """Do so in a slot of the spool under `root`, which must be ours. Raises OSError when the disk takes no more."""
    paths = sorted(directory.glob(f"*{journal.SUFFIX}"))
    found = {path: _read(path) for path in paths}
    left = [one for unsettled, _ in found.values() for one in unsettled]
    if left:
        spooled = set(_spooled(directory, min(one.written_ns for one in left)))
        left = [one for one in left if one.record[:ID_BYTES] not in spooled]
    if left:
        _write(directory, sorted(left, key=lambda one: one.written_ns))
        log.warning(
            "recovered calls that a process was killed with, as unproved slot=%s spans=%d", directory.name, len(left)
        )
    torn = 0
    for path, (_, damaged) in found.items():
        torn += damaged
        if damaged:
            log.error("journal damaged file=%s stretches=%d: it is set aside", path, damaged)
            set_aside(path, root)
        else:
            path.unlink(missing_ok=True)
    return Recovered(len(left), torn)


def _read(path: Path) -> tuple[list[_Left], int]:
    """The unsettled spans of one journal, and how many stretches of it are damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        log.warning("journal cannot be read file=%s error=%s", path, error)
        return [], 1
    if not data:
        return [], 0  # begun, and nothing was written
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        return [], 1
    _, seed = HEADER.unpack_from(data)
    scanned = scan(data, len(data), seed, HEADER.size)
    spans: dict[int, _Left] = {}
    settled: set[int] = set()
    for start, stop in scanned.extents:
        record = bytes(scanned.data[start:stop])
        if record.startswith(SETTLED):
            settled.update(struct.unpack_from(f"<{(len(record) - 1) // 4}I", record, 1))
        else:
            spans[start - HEAD] = _Left(RECORD_HEAD.unpack_from(data, start - HEAD)[3], record)
    return [one for place, one in spans.items() if place not in settled], scanned.damaged


def _spooled(directory: Path, since_ns: int) -> Iterator[bytes]:
    """The ids of the spans in those files of the spool that may have been written since then."""
    segments = []
    for path in directory.glob(f"*{spool_segment.SUFFIX}"):
        try:
            segments.append(Segment.inherit(path))
        except (OSError, DamagedError) as error:
            log.warning("spool file cannot be searched file=%s error=%r", path, error)
    segments.sort(key=lambda one: one.begun_ns)
    before = [one.begun_ns <= since_ns for one in segments].count(True)
    for segment in segments[max(0, before - 1) :]:
        try:
            scanned = scan(segment.path.read_bytes(), segment.end, segment.seed, spool_segment.START)
        except OSError as error:
            log.warning("spool file cannot be searched file=%s error=%s", segment.path, error)
        else:
            yield from (bytes(scanned.data[start : start + ID_BYTES]) for start, _ in scanned.extents)


def _write(directory: Path, left: list[_Left]) -> None:
    segment = Segment.create(directory)
    try:
        for one in left:
            segment.append(one.record)
    except OSError:
        segment.path.unlink(missing_ok=True)
        raise
    finally:
        segment.close()
