"""A slot of the spool: a directory that belongs to one process for as long as the process lives.

Ownership is a lock on a file in it, which the kernel lets go of when the process ends, however it ends. So the slots of
the dead are recognised, and never those of the living.
"""

import fcntl
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Slot:
    """A directory that is ours until `release`."""

    directory: Path
    lock: int

    def release(self) -> None:
        """Let others have it."""
        os.close(self.lock)


def take_slot(root: Path) -> Slot:
    """The first free slot under `root`. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in itertools.count():
        directory = root / str(number)
        directory.mkdir(exist_ok=True, mode=0o700)
        if (slot := _lock(directory)) is not None:
            return slot
    raise AssertionError("unreachable: numbers do not end")


def abandoned_slots(root: Path) -> Iterator[Slot]:
    """The slots whose process is dead, each ours until the next one is asked for. Raises OSError."""
    for directory in sorted(root.iterdir()):
        if directory.name.isdecimal() and (slot := _lock(directory)) is not None:
            try:
                yield slot
            finally:
                slot.release()


def _lock(directory: Path) -> Slot | None:
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return Slot(directory, lock)
