"""The calls that one engine serves now, counted on the board, and what each knows of its weights when it begins."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from sidecar.board import Board


@dataclass(frozen=True, slots=True)
class Stamp:
    """What was known of a replica's weights at one moment. `version` None: not known."""

    epoch: int
    """Grows with every change of weights, every loss of contact and every update that begins or ends."""
    version: int | None


class InFlight:
    """Counts a call in and out; one object serves all calls of a replica, since it holds nothing of them."""

    def __init__(self, board: Board, place: int, stamp: Callable[[], Stamp]) -> None:
        self._board = board
        self._place = place
        self._stamp = stamp

    def __enter__(self) -> Stamp:
        self._board.count(self._place, 1)
        return self._stamp()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._board.count(self._place, -1)
