"""Which variant each rollout has, so that it stays on it while weights and variants change.

Kept in SQLite, for all processes and over restarts, and in memory for speed: a rollout's first call in a process costs
a write of some 20 microseconds. The newest `MAX_ROLLOUTS` are kept. What cannot be written (the disk is full) is kept
in this process and written later; agents do not wait for it. What is forgotten is drawn again, which gives the same
variant while the weights are the same. Nothing is synced to disk: what a power cut loses are rollouts that it ended.
"""

import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Container
from hashlib import sha256
from pathlib import Path

log = logging.getLogger(__name__)

FILE = "prompt_rollouts.sqlite"
MAX_ROLLOUTS = 200_000
MAX_IN_MEMORY = 20_000
TRIM_EVERY = 200
BUSY_S = 0.02
"""Another process writes for microseconds: who has to wait longer tries again later."""
RETRY_S = 1.0
"""After a failure the file is left alone for so long."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rollouts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, rollout BLOB NOT NULL UNIQUE, version INTEGER NOT NULL
)
"""
_FIND = "SELECT version FROM rollouts WHERE rollout = ?"
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
        self._recent: OrderedDict[tuple[str, str], tuple[int, bool]] = OrderedDict()
        """Version, and whether it is in the file."""
        self._failing = False
        self._retry_at = 0.0

    def version(self, prompt: str, rollout_id: str, known: Container[int], draw: Callable[[], int]) -> int:
        """The version that a rollout has of a prompt; what `draw` gives where it has none yet, from then on."""
        key = (prompt, rollout_id)
        version, written = self._recent.get(key, (None, False))
        if version is None or version not in known:
            version, written = draw(), False
        if not written:
            found = self._note(prompt, rollout_id, version)
            written = found is not None
            if found in known:  # it is not where the file is older than the prompts
                version = found or version
        self._recent[key] = (version, written)
        self._recent.move_to_end(key)
        if len(self._recent) > MAX_IN_MEMORY:
            self._recent.popitem(last=False)
        return version

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _note(self, prompt: str, rollout_id: str, version: int) -> int | None:
        """The version in the file: that of whichever process was first. None: the file cannot be used now."""
        if self._failing and time.monotonic() < self._retry_at:
            return None
        key = sha256(f"{prompt}\0{rollout_id}".encode()).digest()[:16]
        try:
            connection = self._open()
            if (row := connection.execute(_FIND, (key,)).fetchone()) is None:
                number, *row = connection.execute(_NOTE, (key, version)).fetchone()
                if number % TRIM_EVERY == 0:
                    connection.execute("DELETE FROM rollouts WHERE id <= ?", (number - self._max_rollouts,))
        except (sqlite3.Error, OSError) as error:
            if not self._failing:
                log.error("variants of rollouts cannot be kept path=%s problem=%s", self._path, error)  # noqa: TRY400
            self._failing, self._retry_at = True, time.monotonic() + RETRY_S
            return None
        self._failing = False
        return int(row[0])

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
