"""A file that need not be on a disk, with a path: the embedded engine reads data of an INSERT from nothing else.

It has no better way in: `send_insert` swallows every error that comes after parsing (a constraint, a full disk, a view
that throws), and data behind the statement loses leading bytes.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


class MemoryFile:
    """In memory where the system can. To be filled again and again, and closed at the end."""

    def __init__(self) -> None:
        self._unlink: Path | None = None
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("insert")
            self.path = f"/proc/self/fd/{self._fd}"
        else:
            self._fd, self.path = tempfile.mkstemp(prefix="insert-")
            self._unlink = Path(self.path)

    def fill(self, pieces: Iterable[bytes]) -> int:
        """Make `pieces` its whole content; how many bytes these are."""
        at = 0
        for piece in pieces:
            view = memoryview(piece)
            while view:
                written = os.pwrite(self._fd, view, at)
                at += written
                view = view[written:]
        os.ftruncate(self._fd, at)
        return at

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)
        if self._unlink is not None:
            self._unlink.unlink()
