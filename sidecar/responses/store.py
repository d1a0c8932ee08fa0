"""Stored responses: what `previous_response_id`, item references and `GET /v1/responses/{id}` refer to.

One SQLite file, shared by all worker processes and kept over restarts. A row holds only its own turn; a conversation
is the chain of rows. Each tenant sees its own rows alone and keeps at most so many rows and bytes: of the responses
that no other continues the longest unused go first, so that whatever is there can be continued. Storing a turn touches
its own row and the one before, however long the conversation is. The file is opened at the first use.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

Json = dict[str, Any]
log = logging.getLogger(__name__)

LOCK_WAIT_S = 2.0
"""How long a writer waits for another process; each writes for about a millisecond."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (  -- one row: one response of one tenant
    tenant TEXT NOT NULL, id TEXT NOT NULL, previous TEXT, used INTEGER NOT NULL, size INTEGER NOT NULL,
    continued INTEGER NOT NULL DEFAULT 0,  -- how many rows continue it
    input BLOB NOT NULL, response BLOB NOT NULL, PRIMARY KEY (tenant, id)
);
CREATE INDEX IF NOT EXISTS last_turns_by_use ON responses (tenant, used) WHERE continued = 0;
CREATE TABLE IF NOT EXISTS held (  -- one row: what one tenant holds
    tenant TEXT PRIMARY KEY, n INTEGER NOT NULL, size INTEGER NOT NULL
);
CREATE TRIGGER IF NOT EXISTS responses_added AFTER INSERT ON responses BEGIN
    INSERT INTO held VALUES (new.tenant, 1, new.size)
    ON CONFLICT (tenant) DO UPDATE SET n = n + 1, size = size + new.size;
    UPDATE responses SET continued = continued + 1 WHERE tenant = new.tenant AND id = new.previous;
END;
CREATE TRIGGER IF NOT EXISTS responses_removed AFTER DELETE ON responses BEGIN
    UPDATE held SET n = n - 1, size = size - old.size WHERE tenant = old.tenant;
    UPDATE responses SET continued = continued - 1 WHERE tenant = old.tenant AND id = old.previous;
END;
"""

_ADD = """
INSERT INTO responses (tenant, id, previous, used, size, input, response)
VALUES (:tenant, :id, :previous, :used, :size, :input, :response)
"""

_EVICT = """
DELETE FROM responses WHERE rowid =
    (SELECT rowid FROM responses WHERE tenant = ? AND continued = 0 ORDER BY used, rowid LIMIT 1)
"""

_READ_CHAIN = """
WITH RECURSIVE chain (id, previous, input, response, depth) AS (
    SELECT id, previous, input, response, 0 FROM responses WHERE tenant = :tenant AND id = :id
    UNION ALL
    SELECT earlier.id, earlier.previous, earlier.input, earlier.response, depth + 1
    FROM chain JOIN responses AS earlier ON earlier.tenant = :tenant AND earlier.id = chain.previous
)
SELECT id, previous, input, response FROM chain ORDER BY depth DESC
"""


class StoreError(Exception):
    """The file cannot be used."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One turn. `previous`: the id of the response it continues, None where it begins a conversation."""

    id: str
    previous: str | None
    input: list[Json]
    """The items of this turn's own request."""
    response: Json
    """The `response` object as the client got it."""


class ResponseStore:
    """The stored responses of all tenants. To be used from one thread: it may wait, for the disk or another process."""

    def __init__(self, file: Path, *, max_count: int, max_bytes: int) -> None:
        self.lost = 0
        """Responses that could not be stored."""
        self._file = file
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None

    def put(self, tenant: str, stored: Stored) -> None:
        """Keep a response. Where that fails it is logged and counted, since its client has its answer all the same."""
        given, response = orjson.dumps(stored.input), orjson.dumps(stored.response)
        size = len(given) + len(response)
        row = {"tenant": tenant, "id": stored.id, "previous": stored.previous, "used": time.time_ns(), "size": size}
        if size > self._max_bytes:
            self.lost += 1
            log.warning("response is too large to be stored size=%d limit=%d", size, self._max_bytes)
            return
        try:
            with self._transaction(writes=True) as db:
                db.execute(_ADD, row | {"input": given, "response": response})
                self._evict(db, tenant)
        except StoreError as error:
            self.lost += 1
            log.error("response not stored file=%s problem=%s", self._file, error)  # noqa: TRY400 - no bug of ours

    def get(self, tenant: str, response_id: str) -> Stored | None:
        """One response; None where the tenant has none with this id. Raises StoreError."""
        with self._transaction() as db:
            found = db.execute(
                "SELECT id, previous, input, response FROM responses WHERE tenant = ? AND id = ?", (tenant, response_id)
            ).fetchone()
        return _stored(found) if found else None

    def chain(self, tenant: str, response_id: str) -> list[Stored] | None:
        """A response after all that it continues; None where any of them is not there. Raises StoreError."""
        with self._transaction() as db:
            rows = db.execute(_READ_CHAIN, {"tenant": tenant, "id": response_id}).fetchall()
        found = [_stored(row) for row in rows]
        return found if found and found[0].previous is None else None

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response; whether there was one. Raises StoreError."""
        with self._transaction(writes=True) as db:
            done = db.execute("DELETE FROM responses WHERE tenant = ? AND id = ?", (tenant, response_id))
            return done.rowcount > 0

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _evict(self, db: sqlite3.Connection, tenant: str) -> None:
        while True:
            n, size = db.execute("SELECT n, size FROM held WHERE tenant = ?", (tenant,)).fetchone()
            if n <= self._max_count and size <= self._max_bytes:
                return
            db.execute(_EVICT, (tenant,))

    @contextlib.contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            db = self._open()
            db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self._file}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # Conversations are for their tenants: nobody else on the machine reads the file.
            os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
            db = sqlite3.connect(self._file, timeout=LOCK_WAIT_S, isolation_level=None)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")  # a power cut may take the last turns, never the file
                db.executescript(_SCHEMA)
            except sqlite3.Error:
                db.close()
                raise
            self._connection = db
        return self._connection


def _stored(row: tuple[str, str | None, bytes, bytes]) -> Stored:
    return Stored(row[0], row[1], orjson.loads(row[2]), orjson.loads(row[3]))
