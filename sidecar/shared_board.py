"""The board of several processes: its file under `[sidecar] data`, and the engines' places on it.

Normally it outlives its sidecar, so that the next one knows of an update that was cut off. A second sidecar with the
same data, such as one that takes over while the first drains, has a board of its own.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.board import Board
from sidecar.places import capacity, load_places, placed, save_places
from sidecar.routes import policy_engines
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings


@dataclass(frozen=True)
class SharedBoard:
    """`board`: the publisher's view. `places`: of each engine at the start."""

    file: Path
    board: Board
    places: Mapping[str, int]
    data: Path
    lasts: bool
    """Whether it outlives the sidecar."""

    def keep(self, places: Mapping[str, int]) -> None:
        """Note the engines' places for the next sidecar. Raises TracegradError."""
        if self.lasts:
            save_places(self.data, places)


@contextlib.contextmanager
def shared_board(settings: Settings) -> Iterator[SharedBoard]:
    """The board, while the block runs. Raises TracegradError."""
    data, engines = settings.sidecar.data, policy_engines(settings)
    with _first_in(data) as first:
        file = data / ("board" if first else f"board.{os.getpid()}")
        before = load_places(data) if first else {}
        count = capacity(len(engines))
        places = placed(engines, before, count)
        board = Board.shared(file, count, settings.sidecar.workers)
        for url, place in places.items():
            if before.get(url) != place:
                board.vacate(place)
        shared = SharedBoard(file, board, places, data, lasts=first)
        shared.keep(places)
        try:
            yield shared
        finally:
            if not first:
                file.unlink(missing_ok=True)


@contextlib.contextmanager
def _first_in(data: Path) -> Iterator[bool]:
    """Whether no other sidecar uses the directory's board; while the block runs, none other is told so."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(data / "board.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise TracegradError(f"{data} cannot be written ({error.strerror}): set [sidecar] data") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = True
        except BlockingIOError:
            first = False
        yield first
    finally:
        os.close(lock)
