"""Connections for SQL requests. One without a session gets a fresh connection; a session keeps its own while in use.

Invariants: what one request set, by URL or by `SET`, is seen by later requests only if they name the same session, and
settings of the URL not even then. A connection serves one user: what a reader's may do, the engine bounds for good.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson

from collector.clickhouse_request import SqlRequest, error
from collector.clickhouse_users import User
from collector.engine import Connection, Engine, quote

MAX_SESSIONS = 256
# What a statement may take unless it asks for more. Big sorts and groups go on on disk. `format_schema` holds the
# schema itself: a name would be that of a file. Once readonly is 2, the engine lets no statement leave it.
LIMITS = {
    "max_memory_usage": "536870912",
    "max_bytes_before_external_group_by": "150000000",
    "max_bytes_before_external_sort": "150000000",
    "format_schema_source": "string",
}
READER_LIMITS = {**LIMITS, "max_memory_usage": "369098752", "max_execution_time": "600", "readonly": "2"}
SESSION_NOT_FOUND, SESSION_IS_LOCKED, TOO_MANY_SESSIONS = 372, 373, 202


@dataclass
class _Session:
    """`applied`: settings of the latest URL, which hold now; `original`: what they replaced."""

    connection: Connection
    expires_at: float
    timeout_s: float
    busy: bool = True
    database: str | None = None
    applied: dict[str, str] = field(default_factory=dict)
    original: dict[str, str] = field(default_factory=dict)

    def prepare(self, database: str, settings: Mapping[str, str]) -> None:
        """Make URL settings hold, and those of the URL before no more."""
        unknown = [name for name in settings if name not in self.original]
        if unknown:
            names = ", ".join(quote(name) for name in unknown)
            asked = f"SELECT name, value FROM system.settings WHERE name IN ({names})"  # noqa: S608 - quoted
            lines = self.connection.query(asked, "JSONCompactEachRow").body.splitlines()
            self.original.update(orjson.loads(line) for line in lines)
        restored = {
            name: self.original[name] for name in self.applied if name not in settings and name in self.original
        }
        changed = {name: value for name, value in settings.items() if self.applied.get(name) != value}
        self.connection.set(restored | changed)
        self.applied = dict(settings)
        if database != self.database:
            _use(self.connection, database)
            self.database = database


class Sessions:
    """Hands out connections to threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._sessions: dict[tuple[str, str], _Session] = {}

    @contextmanager
    def connection(self, request: SqlRequest, user: User, *, readonly: bool, tag: str) -> Iterator[Connection]:
        """A connection that is ready for the request and that `kill` finds by its tag. Raises EngineError.

        A readonly request of who may write gets a fresh one: the engine does not let a connection out of that mode.
        """
        settings = {**request.settings, "log_comment": tag}
        if request.session is None or (readonly and user.writes):
            with self._engine.connection() as connection:
                _use(connection, request.database)
                _bound(connection, user, readonly=readonly)
                connection.set(settings)
                yield connection
            return
        session = self._take((user.name, request.session), request, user)
        try:
            session.prepare(request.database, settings)
            yield session.connection
        finally:
            session.expires_at = time.monotonic() + (-1 if request.session_ends else session.timeout_s)
            session.busy = False

    def kill(self, tags: Iterable[str]) -> None:
        """Stop the statements of the requests with these tags, as far as they are running."""
        with self._engine.connection() as connection:
            connection.query(f"KILL QUERY WHERE Settings['log_comment'] IN ({', '.join(map(quote, tags))}) ASYNC")

    def close(self) -> None:
        """Close what is kept. No request may be running."""
        with self._lock:
            for session in self._sessions.values():
                session.connection.close()
            self._sessions.clear()

    def _take(self, key: tuple[str, str], request: SqlRequest, user: User) -> _Session:
        with self._lock:
            self._expire()
            session = self._sessions.get(key)
            if session is None:
                if request.session_must_exist:
                    raise error(SESSION_NOT_FOUND, f"there is no session {key[1]}. (SESSION_NOT_FOUND)")
                if len(self._sessions) >= MAX_SESSIONS and not self._evict():
                    raise error(TOO_MANY_SESSIONS, f"more than {MAX_SESSIONS} sessions are at work")
                connection = self._engine.connect()
                _bound(connection, user, readonly=False)
                session = _Session(connection, time.monotonic(), request.session_timeout_s)
                self._sessions[key] = session
            elif session.busy:
                raise error(SESSION_IS_LOCKED, f"session {key[1]} is at work on another request. (SESSION_IS_LOCKED)")
            session.busy = True
            session.timeout_s = request.session_timeout_s
            return session

    def _expire(self) -> None:
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if not session.busy and session.expires_at < now:
                self._sessions.pop(name).connection.close()

    def _evict(self) -> bool:
        """Close the session that has been idle longest; False when all are busy."""
        idle = [
            (session.expires_at - session.timeout_s, name)
            for name, session in self._sessions.items()
            if not session.busy
        ]
        if not idle:
            return False
        self._sessions.pop(min(idle)[1]).connection.close()
        return True


def _use(connection: Connection, database: str) -> None:
    connection.query("USE `" + database.replace("\\", "\\\\").replace("`", "\\`") + "`")


def _bound(connection: Connection, user: User, *, readonly: bool) -> None:
    """Limits first, then the profile: its constraints hold for what is set after it, whatever profile comes later."""
    connection.set(LIMITS if user.writes and not readonly else READER_LIMITS)
    connection.query("SET profile = 'writer'" if user.writes else "SET profile = 'reader'")
