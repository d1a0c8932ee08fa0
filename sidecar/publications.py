"""What was published: every attempt, its file and digest, and so which version each policy's engines should run.

Invariant: a version that any engine has run names one set of weights for ever. The record outlives the process: it is
written before the first engine is touched and again at the end, to SQLite under `[sidecar] data`.
"""

import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tracegrad.errors import TracegradError

FILE = "publications.sqlite"
_TABLE = """
CREATE TABLE IF NOT EXISTS publications (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    policy TEXT NOT NULL,
    version INTEGER NOT NULL,
    path TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    state TEXT NOT NULL,
    began_at REAL NOT NULL
)
"""


class RecordError(TracegradError):
    """The record cannot be read or written."""


class State(StrEnum):
    """What became of a publication."""

    BEGUN = "begun"
    """Under way, or cut off with its process."""
    DONE = "done"
    """The policy's version until the next that is done. Replicas that were away or failed are brought to it."""
    UNDONE = "undone"
    """Some replica ran it, and was rolled back."""
    FAILED = "failed"
    """No replica ran it."""


@dataclass(frozen=True)
class Published:
    """One attempt to publish."""

    number: int
    version: int
    file: Path
    sha256: str
    state: State


class Publications:
    """The record of all policies; reads come from memory. Methods that write block, and may raise RecordError."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        self._lock = threading.Lock()
        self._by_policy: dict[str, dict[int, Published]] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file.touch(mode=0o600)
        except OSError as error:
            raise RecordError(f"{self._file} cannot be written ({error.strerror}): set [sidecar] data") from error
        self._write(_TABLE)
        rows = self._write("SELECT policy, id, version, path, sha256, state FROM publications ORDER BY id")
        for policy, number, version, path, sha256, state in rows:
            self._keep(policy, Published(number, version, Path(path), sha256, State(state)))

    def current(self, policy: str) -> Published | None:
        """What the policy's engines should run; None: whatever they were started with.

        Where the very first publication was cut off, that is the one: there is no file to go back to.
        """
        every = list(self._by_policy.get(policy, {}).values())
        done = [one for one in every if one.state is State.DONE]
        cut_off = every[-1:] if every and every[-1].state is State.BEGUN else []
        return next(iter((*reversed(done), *cut_off)), None)

    def rolled_back_from(self, policy: str) -> int | None:
        """The newest version that was the policy's before an older one was published again, which now is."""
        done = [one.version for one in self._by_policy.get(policy, {}).values() if one.state is State.DONE]
        return max(done) if done and max(done) > done[-1] else None

    def find(self, policy: str, version: int) -> Published | None:
        """The newest attempt at a version that some engine may have run."""
        every = self._by_policy.get(policy, {}).values()
        return next((one for one in reversed(every) if one.version == version and one.state is not State.FAILED), None)

    def begin(self, policy: str, version: int, file: Path, sha256: str) -> int:
        """Note an attempt that is about to touch the engines; returns its number."""
        row = (policy, version, str(file), sha256, State.BEGUN, time.time())
        statement = (
            "INSERT INTO publications (policy, version, path, sha256, state, began_at) "
            "VALUES (?, ?, ?, ?, ?, ?) RETURNING id"
        )
        number: int = self._write(statement, row)[0][0]
        self._keep(policy, Published(number, version, file, sha256, State.BEGUN))
        return number

    def end(self, policy: str, number: int, state: State) -> None:
        """Note what became of an attempt."""
        begun = self._by_policy[policy][number]
        self._keep(policy, Published(number, begun.version, begun.file, begun.sha256, state))
        self._write("UPDATE publications SET state = ? WHERE id = ?", (state, number))

    def forget(self, policy: str) -> None:
        """Drop the record of a policy: its engines may run what they like, and its versions may be named anew."""
        self._write("DELETE FROM publications WHERE policy = ?", (policy,))
        self._by_policy.pop(policy, None)

    def _keep(self, policy: str, published: Published) -> None:
        self._by_policy.setdefault(policy, {})[published.number] = published

    def _write(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lock, closing(sqlite3.connect(self._file, isolation_level=None, timeout=10)) as database:
                return database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise RecordError(
                f"{self._file} cannot be read or written ({error}): free space, or move it away"
            ) from error
