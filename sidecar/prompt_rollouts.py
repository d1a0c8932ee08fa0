"""Which variant each rollout has, so that it stays on it while weights and variants change.

Kept in SQLite, for all processes and over restarts, and in memory for speed: a rollout's first call in a process costs
a write of some 20 microseconds. The newest `MAX_ROLLOUTS` are kept. What is forgotten, or cannot be written (the disk
is full), is drawn again: that gives the same variant as long as the weights are the same. Nothing here is synced to
disk, since what a power cut loses are rollouts that it ended.
"""

import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Container
from hashlib import sha256
from pathlib import Path

log = logging.getLogger(__name__)

FILE = "prompt_rollouts.sqlite"
MAX_ROLLOUTS = 200_000
MAX_IN_MEMORY = 20_000
TRIM_EVERY = 200
BUSY_S = 0.05
"""Another process writes for microseconds: who waits longer draws without it."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rollouts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, rollout BLOB NOT NULL UNIQUE, version INTEGER NOT NULL
)
"""
_NOTE = """
INSERT INTO rollouts (rollout, version) VALUES (?, ?)
ON CONFLICT (rollout) DO UPDATE SET version = version RETURNING id, version
"""


class RolloutVariants:
    """The variants of the recent rollouts of one data directory."""

    def __init__(self, directory: Path, *, max_rollouts: int = MAX_ROLLOUTS) -> None:
        self._path = directory / FILE
        self._max_rollouts = max_rollouts
        self._connection: sqlite3.Connection | None = None
        self._recent: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._failing = False

    def version(self, prompt: str, rollout_id: str, known: Container[int], draw: Callable[[], int]) -> int:
        """The version that a rollout has of a prompt; what `draw` gives where it has none yet, from then on."""
        key = (prompt, rollout_id)
        found = self._recent.get(key)
        if found is None or found not in known:
            drawn = draw()
            found = self._note(prompt, rollout_id, drawn)
            if found not in known:  # the file is older than the prompts
                found = drawn
            self._recent[key] = found
            if len(self._recent) > MAX_IN_MEMORY:
                self._recent.popitem(last=False)
        else:
            self._recent.move_to_end(key)
        return found

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _note(self, prompt: str, rollout_id: str, drawn: int) -> int:
        """The version noted by whichever process was first."""
        key = sha256(f"{prompt}\0{rollout_id}".encode()).digest()[:16]
        try:
            connection = self._open()
            (row, version) = connection.execute(_NOTE, (key, drawn)).fetchone()
            if row % TRIM_EVERY == 0:
                connection.execute("DELETE FROM rollouts WHERE id <= ?", (row - self._max_rollouts,))
        except (sqlite3.Error, OSError) as error:
            if not self._failing:
                log.error("variants of rollouts cannot be kept path=%s problem=%s", self._path, error)  # noqa: TRY400
            self._failing = True
            return drawn
        self._failing = False
        return int(version)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_S)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute(_SCHEMA)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection
