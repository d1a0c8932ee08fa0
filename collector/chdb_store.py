"""The embedded engine as a store. A call has returned when its work is over, so nothing outlives it."""

import threading
from collections.abc import Mapping

from collector.engine import Connection, Engine
from collector.signals import Signal
from collector.store import Answer

_INSERT_SETTINGS = {"max_threads": "1", "max_insert_threads": "1"}


class ChdbStore:
    """A Store over an open engine, which outlives it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    @property
    def name(self) -> str:
        """The directory."""
        return str(self._engine.directory)

    def insert(self, signal: Signal, body: bytes, query_id: str) -> None:
        """Store `body`. Raises EngineError, and nothing is in."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._engine.connect()
            connection.set(_INSERT_SETTINGS)
        try:
            chosen = signal.insertion
            connection.insert(f"INSERT INTO {chosen.table}", chosen.settings_clause(), chosen.input_format, body)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)

    def query(self, sql: str, output_format: str = "TabSeparated", params: Mapping[str, str] | None = None) -> Answer:
        """Run one statement. Raises EngineError."""
        with self._engine.connection() as connection:
            return connection.query(
                sql, output_format, {name: _escaped(value) for name, value in (params or {}).items()}
            )

    def execute(self, sql: str) -> None:
        """Run one statement that has no result. Raises EngineError."""
        self.query(sql)

    def delete(self, table: str, where: str) -> int:
        """Take rows out, and say how many there were. Raises EngineError."""
        count = int(self.query(f"SELECT count() FROM {table} {where}").body)  # noqa: S608 - the caller's clause
        if count:
            self.execute(f"DELETE FROM {table} {where}")  # noqa: S608
        return count

    def is_running(self, query_id: str) -> bool:
        """Never: an insert that has returned or raised is over."""
        return False

    def close(self) -> None:
        """Give the connections back to the engine."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()


def _escaped(value: str) -> str:
    """As the engine reads the value of a parameter."""
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
