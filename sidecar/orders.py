"""What the publisher has ordered for one replica and found out about it, as the board tells every process."""

from sidecar.board import ASIDE, BROKEN, PAUSED, UPDATING, Board


class Orders:
    """One replica's part of the board, to be read."""

    def __init__(self, board: Board, place: int) -> None:
        self._board = board
        self._place = place

    @property
    def leads(self) -> bool:
        """Whether this process may change it: it publishes."""
        return self._board.leads

    @property
    def wanted(self) -> int | None:
        """The version it should run; None: whichever it has."""
        return self._board.wanted(self._place)

    @property
    def in_flight(self) -> int:
        """Calls that it serves now, of all processes."""
        return self._board.load(self._place)

    @property
    def updating(self) -> bool:
        """Whether its weights are being changed."""
        return bool(self._board.epoch(self._place) % 2)

    @property
    def closed(self) -> bool:
        """Whether new calls wait for a change of its weights."""
        return bool(self._board.flags(self._place) & UPDATING)

    @property
    def paused(self) -> bool:
        """An operator holds new calls back."""
        return bool(self._board.flags(self._place) & PAUSED)

    @property
    def broken(self) -> bool:
        """A load failed half-way: what the engine says of its version is not believed until one succeeds."""
        return bool(self._board.flags(self._place) & BROKEN)

    @property
    def aside(self) -> bool:
        """It could not be brought to the version it should run, or nobody vouches for what it runs."""
        return bool(self._board.flags(self._place) & ASIDE)
