"""The embedded engine as a store. A call has returned when its work is over, so nothing outlives it."""

import threading
from collections.abc import Iterable, Mapping

from collector import clickhouse_memory
from collector.engine import Connection, Engine
from collector.memory_file import MemoryFile
from collector.signals import Signal
from collector.store import Answer

MOST_BYTES = 768 << 20
"""Of the process after an insert. What the next one would find ready is given back above it."""
_INSERT_SETTINGS = {"max_threads": "1", "max_insert_threads": "1"}


class ChdbStore:
    """A Store over an open engine, which outlives it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._idle: list[_Inserter] = []

    @property
    def name(self) -> str:
        """The directory."""
        return str(self._engine.directory)

    def insert(self, signal: Signal, rows: Iterable[bytes], query_id: str) -> None:
        """Store `rows`. Raises EngineError, and then those of some days may be in."""
        with self._lock:
            inserter = self._idle.pop() if self._idle else None
        if inserter is None:
            inserter = _Inserter(self._engine.connect())
        try:
            inserter.insert(signal, rows)
        except BaseException:
            inserter.close()
            raise
        with self._lock:
            self._idle.append(inserter)
        if clickhouse_memory.is_high(MOST_BYTES):
            clickhouse_memory.relieve(self._engine)

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
            for inserter in self._idle:
                inserter.close()
            self._idle.clear()


def _escaped(value: str) -> str:
    """As the engine reads the value of a parameter."""
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


class _Inserter:
    """A connection, and the file in memory that it reads inserts from. Written over, it costs half of a new one."""

    def __init__(self, connection: Connection) -> None:
        connection.set(_INSERT_SETTINGS)
        self._connection = connection
        self._file = MemoryFile()

    def insert(self, signal: Signal, rows: Iterable[bytes]) -> None:
        if self._file.fill(rows):
            chosen = signal.insertion
            self._connection.query(
                f"INSERT INTO {chosen.table} FROM INFILE '{self._file.path}' "
                f"{chosen.settings_clause()} FORMAT {chosen.input_format}"
            )

    def close(self) -> None:
        self._connection.close()
        self._file.close()
