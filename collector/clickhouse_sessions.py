"""Connections for SQL requests. One without a session gets a fresh connection; a session keeps its own while in use.

Invariant: what one request set, by URL or by `SET`, is seen by later requests only if they name the same session, and
settings of the URL not even then.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson

from collector.clickhouse_request import SqlRequest, error
from collector.engine import Connection, Engine, quote

MAX_SESSIONS = 256
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
        self._sessions: dict[str, _Session] = {}

    @contextmanager
    def connection(self, request: SqlRequest, *, readonly: bool, tag: str) -> Iterator[Connection]:
        """A connection that is ready for the request and that `kill(tag)` finds. Raises EngineError.

        A readonly request gets a fresh one: the engine does not let a connection out of that mode.
        """
        settings = {**request.settings, "log_comment": tag}
        if request.session is None or readonly:
            with self._engine.connection() as connection:
                _use(connection, request.database)
                connection.set(settings | ({"readonly": "2"} if readonly else {}))
                yield connection
            return
        session = self._take(request.session, request)
        try:
            session.prepare(request.database, settings)
            yield session.connection
        finally:
            session.expires_at = time.monotonic() + session.timeout_s
            session.busy = False

    def kill(self, tag: str) -> None:
        """Stop the statement of the request with this tag, if it is running."""
        with self._engine.connection() as connection:
            connection.query(f"KILL QUERY WHERE Settings['log_comment'] = {quote(tag)} ASYNC")

    def close(self) -> None:
        """Close what is kept. No request may be running."""
        with self._lock:
            for session in self._sessions.values():
                session.connection.close()
            self._sessions.clear()

    def _take(self, name: str, request: SqlRequest) -> _Session:
        with self._lock:
            self._expire()
            session = self._sessions.get(name)
            if session is None:
                if request.session_must_exist:
                    raise error(SESSION_NOT_FOUND, f"there is no session {name}")
                if len(self._sessions) >= MAX_SESSIONS and not self._evict():
                    raise error(TOO_MANY_SESSIONS, f"more than {MAX_SESSIONS} sessions are at work")
                session = _Session(self._engine.connect(), time.monotonic(), request.session_timeout_s)
                self._sessions[name] = session
            elif session.busy:
                raise error(SESSION_IS_LOCKED, f"session {name} is at work on another request")
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
