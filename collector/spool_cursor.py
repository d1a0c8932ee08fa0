"""What a spool remembers of its readers: up to where all is done, and up to where the store may have it already.

Invariants: a record at or after `doubt` is surely not in the store; one before `done` surely is, or was refused. The
file has two slots that are written in turn, each with a checksum, so a torn write leaves the state before it. Writing
is not followed by a sync: a killed process loses nothing, and after a loss of power, which the system's boot id tells,
everything that is not done is in doubt.
"""

import contextlib
import logging
import os
import secrets
import struct
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_intdigest as checksum

log = logging.getLogger(__name__)

MAGIC = b"TGCURS01"
_SLOT = struct.Struct("<8sQ16s?QQQQB")
"""Magic, generation, boot id, whether it was closed, done, doubt, number of batches begun; then their ends."""
_POSITION = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<Q")
_SLOT_BYTES = 512  # a sector: disks write it wholly or not at all
_SLOTS_AT = (0, 4096)
MAX_BEGUN = 24
"""Batches that are begun and not done."""


class Position(NamedTuple):
    """A place in the spool. Places are ordered; all that was appended earlier is before."""

    segment: int
    offset: int


NOWHERE = Position(0, 0)


@dataclass(frozen=True)
class Progress:
    """`begun` are the ends of batches that were begun and not done, in order."""

    done: Position = NOWHERE
    doubt: Position = NOWHERE
    begun: tuple[Position, ...] = ()


class Cursor:
    """The file. `before` is what an earlier process left; None when there is none, or none that can be read.

    `trusted`: nothing can be in the store beyond what `before` says.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._boot = _boot_id()
        self._generation = 0
        self.before: Progress | None = None
        self.trusted = False
        found = [slot for at in _SLOTS_AT if (slot := _parse(os.pread(self._fd, _SLOT_BYTES, at))) is not None]
        if found:
            self._generation, boot, closed, self.before = max(found, key=lambda slot: slot[0])
            # Of two slots the damaged one may be the newer.
            whole = len(found) == min(self._generation, len(_SLOTS_AT))
            self.trusted = whole and (closed or boot == self._boot)

    def write(self, progress: Progress, *, closed: bool = False) -> None:
        """Raises OSError, and then the file says what it said before."""
        generation = self._generation + 1
        flat = _SLOT.pack(
            MAGIC, generation, self._boot, closed, *progress.done, *progress.doubt, len(progress.begun)
        ) + b"".join(_POSITION.pack(*end) for end in progress.begun)
        os.pwrite(self._fd, flat + _CHECKSUM.pack(checksum(flat)), _SLOTS_AT[generation % 2])
        self._generation = generation

    def sync(self) -> None:
        """Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def after(progress: Progress, done: Position) -> Progress:
    """The progress when all before `done` is."""
    return replace(
        progress, done=done, doubt=max(done, progress.doubt), begun=tuple(end for end in progress.begun if end > done)
    )


def _parse(data: bytes) -> tuple[int, bytes, bool, Progress] | None:
    if len(data) < _SLOT.size:
        return None
    magic, generation, boot, closed, *places, begun = _SLOT.unpack_from(data)
    size = _SLOT.size + begun * _POSITION.size
    if magic != MAGIC or size + _CHECKSUM.size > len(data):
        return None
    if _CHECKSUM.unpack_from(data, size)[0] != checksum(data[:size]):
        return None
    ends = tuple(Position(*end) for end in _POSITION.iter_unpack(data[_SLOT.size : size]))
    return generation, boot, closed, Progress(Position(*places[:2]), Position(*places[2:]), ends)


def _boot_id() -> bytes:
    """The same for all processes between two starts of the system; where it cannot be known, never the same."""
    with contextlib.suppress(OSError, ValueError):
        return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    return secrets.token_bytes(16)
