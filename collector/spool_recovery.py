"""What earlier processes left in the directory of a spool.

Invariant: nothing found there stops the start. Only the file that was written last can have been cut off by a killed
process: its tail is cut here; other damage shows when the file is read.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from collector.spool_aside import Aside
from collector.spool_cursor import Position
from collector.spool_files import discard
from collector.spool_segment import SUFFIX, Segment, number_of

log = logging.getLogger(__name__)

_READ_BYTES = 16 << 20


@dataclass(frozen=True)
class Left:
    """`segments` have something that is not done, oldest first. No file has a number above `highest`."""

    segments: list[Segment]
    highest: int


def recover(directory: Path, done: Position, aside: Aside) -> Left:
    """Raises OSError when the directory cannot be read."""
    numbered = {}
    for path in sorted(directory.iterdir()):
        number = number_of(path)
        if number in numbered:
            aside.file(path, path.lstat().st_size, "another file has its number")
        elif number is not None:
            numbered[number] = path
        elif path.suffix == SUFFIX:
            log.warning("spool foreign file=%s: not read", path)
    segments = []
    for number, path in numbered.items():
        segment = _inherited(path, number < done.segment, aside)
        if segment is not None:
            start = done.offset if number == done.segment else 0
            if number == max(numbered):
                _cut_tail(segment, start, aside)
            if segment.end > start:
                segments.append(segment)
            else:
                discard(segment)
    return Left(segments, max(numbered, default=0))


def _inherited(path: Path, is_done: bool, aside: Aside) -> Segment | None:
    try:
        segment = Segment.inherit(path)
    except OSError as error:
        aside.file(path, 0, error)
        return None
    if is_done:
        discard(segment)
        return None
    return segment


def _cut_tail(segment: Segment, at: int, aside: Aside) -> None:
    """Find where the last whole record ends, and let the file end there."""
    try:
        end = at = min(at, segment.end)
        with segment.reader() as reader:
            while at < segment.end:
                records, at, _ = reader.read(at, segment.end, _READ_BYTES)
                if records:
                    end = at
                else:
                    at = reader.skip(at, segment.end)
            if not reader.is_end(end):
                aside.tail(reader, end, reader.skip(end, segment.end))
        segment.cut(end)
    except OSError as error:
        log.warning("spool cannot look for the end of file=%s error=%s", segment.path, error)
    finally:
        segment.close()
