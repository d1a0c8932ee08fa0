"""The embedded ClickHouse engine: one process opens a directory, each thread that asks has its own connection.

Invariants: a directory is open at most once, in this process or any other; a connection is used by one thread at
a time. Opening one takes about 0.3 ms, so settings and temporary tables of one request never reach another.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from collector.directory_lock import hold
from collector.store import UNKNOWN_CODE, Answer, StoreError, error_code, is_retryable, quote
from tracegrad.errors import TracegradError

# Read when the library is loaded: memory that queries have freed goes back to the system soon, else the process would
# take twice what its statements may. Not at once: the next insert would pay a fifth of its time for new pages.
os.environ.setdefault("JE_MALLOC_CONF", "dirty_decay_ms:2000,muzzy_decay_ms:0")

import chdb

__all__ = ["Answer", "Connection", "Engine", "EngineError", "quote"]

CONFIG = Path(__file__).parent / "engine.xml"
_DIRECTORIES = ("data", "metadata", "named_collections", "store", "tmp")
"""What the engine makes in a store's directory; its own words for a file of such a name are hard to read."""


class EngineError(StoreError):
    """The embedded ClickHouse refused a statement. `code` is its error code, the message its own."""

    def __init__(self, message: str) -> None:
        start = message.find("Code: ")
        text = message[start:].strip() if start >= 0 else f"Code: {UNKNOWN_CODE}. DB::Exception: {message.strip()}"
        code = error_code(text)
        super().__init__(code, text, retryable=is_retryable(code))


class Connection:
    """A session with the engine: settings, current database and temporary tables. For one thread at a time."""

    def __init__(self, address: str) -> None:
        self._connection = chdb.connect(address)

    def query(
        self, sql: str | bytes, output_format: str = "TabSeparated", params: Mapping[str, str] | None = None
    ) -> Answer:
        """Run one statement (or several DDL statements). `params` are escaped as in TSV. Raises EngineError."""
        try:
            result = self._connection.query(sql, output_format, params=dict(params or {}))
        except RuntimeError as error:
            # What the statement had written of its answer is still there, and would begin the next one's.
            with suppress(RuntimeError):
                self._connection.query("SELECT 1", "Null")
            raise EngineError(str(error)) from error
        return Answer(
            result.bytes() or b"",
            result.rows_read(),
            result.bytes_read(),
            result.rows_written(),
            result.bytes_written(),
            result.elapsed(),
        )

    def watch(self, on_progress: Callable[[Mapping[str, int]], None] | None) -> None:
        """Call `on_progress` with what a running statement has read so far, some times a second, in any thread."""
        self._connection.set_progress_callback(on_progress)

    def set(self, settings: Mapping[str, str]) -> None:
        """Settings from now on. Names must be identifiers: the caller checks."""
        if settings:
            self.query("SET " + ", ".join(f"{name} = {quote(value)}" for name, value in settings.items()))

    def close(self) -> None:
        """Give it back to the engine."""
        self._connection.close()


class Engine:
    """The open directory, until the end of the `with` block: connections live on it."""

    def __init__(self, directory: Path) -> None:
        path = str(directory.absolute())
        if set("?&%") & set(path + str(CONFIG)):
            raise TracegradError(f"cannot keep a store in {path}: choose a --data path without ?, & and %")
        self.directory = directory.absolute()
        self._lock = hold(directory, "the store", "--data")
        for name in _DIRECTORIES:
            if os.path.lexists(entry := self.directory / name) and not entry.is_dir():
                self._lock.close()
                raise TracegradError(
                    f"cannot keep the store in {path}: {entry} is in the way, since it is no directory; "
                    "move it away or choose another --data"
                )
        self._address = f"{path}?config-file={CONFIG}&users_config={CONFIG}"
        try:
            self._root = self.connect()
            (self.version, self.timezone) = (
                self._root.query("SELECT version(), timezone()").body.decode().rstrip("\n").split("\t")
            )
        except EngineError as error:
            self._lock.close()
            raise TracegradError(f"cannot open the store in {path}: {error}") from error

    def connect(self) -> Connection:
        """A fresh connection. Raises EngineError."""
        try:
            return Connection(self._address)
        except RuntimeError as error:
            raise EngineError(str(error)) from error

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A fresh connection, closed at the end of the block."""
        connection = self.connect()
        try:
            yield connection
        finally:
            connection.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        """Let another process open the directory. All connections must be closed."""
        self._root.close()
        self._lock.close()
