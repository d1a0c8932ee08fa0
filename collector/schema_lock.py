"""One collector at a time changes the schema of a server. The lock is a table, whose creation only one can win.

A holder says that it lives by changing the comment; one that has said nothing for `STALE_S` is taken to be dead. Its
table is renamed to a name that only this holder's can get, so that of several who wait, one takes it away.
"""

import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import orjson

from collector.ddl import for_cluster
from collector.store import Answer, StoreError, quote

log = logging.getLogger(__name__)

TABLE = "otel.schema_lock"
STALE_S = 300
WAIT_S = 30.0
POLL_S = 1.0
TABLE_ALREADY_EXISTS = 57
_HOLDER = re.compile(r"[0-9a-f]{32}")


class Statements(Protocol):
    """Whatever runs SQL: a store, or a connection to the engine."""

    def query(self, sql: str, output_format: str = "TabSeparated") -> Answer:
        """Run one statement. Raises StoreError."""
        ...


class SchemaLock:
    """Held inside the block of `held`."""

    def __init__(self, store: Statements, cluster: str | None) -> None:
        self._store = store
        self._cluster = cluster
        self._id = uuid.uuid4().hex
        self._who = f"{self._id} process {os.getpid()} on {socket.gethostname()}"

    @contextmanager
    def held(self) -> Iterator["SchemaLock"]:
        """Wait until nobody else holds it. Raises StoreError after `WAIT_S`."""
        self._acquire()
        try:
            yield self
        finally:
            self._release()

    def still_here(self) -> None:
        """Say so; between two steps, each of which must take less than `STALE_S`."""
        comment = quote(f"{self._who}, {uuid.uuid4().hex[:8]}")
        self._run(f"ALTER TABLE {TABLE} MODIFY COMMENT {comment}")

    def _acquire(self) -> None:
        deadline = time.monotonic() + WAIT_S
        told = False
        while True:
            try:
                self._run(f"CREATE TABLE {TABLE} (nothing UInt8) ENGINE = Memory COMMENT {quote(self._who)}")
            except StoreError as error:
                if error.code != TABLE_ALREADY_EXISTS and f"Code: {TABLE_ALREADY_EXISTS}." not in str(error):
                    self._release()  # some server of the cluster may have it
                    raise
            else:
                return
            holder, silent_s = self._holder()
            if not told and holder:
                log.info("schema locked holder=%r", holder)
                told = True
            if silent_s > STALE_S:
                self._take_away(holder)
            elif time.monotonic() > deadline:
                message = f"another collector has been changing the schema for {WAIT_S:.0f} s: {holder}"
                raise StoreError(TABLE_ALREADY_EXISTS, message, retryable=True)
            else:
                time.sleep(POLL_S)

    def _holder(self) -> tuple[str, float]:
        """Who holds it, and how long ago that one last said so; an empty name where nobody does."""
        database, name = TABLE.split(".")
        asked = f"""
            SELECT comment, toInt64(now()) - toInt64(metadata_modification_time)
            FROM system.tables WHERE database = {quote(database)} AND name = {quote(name)}
        """  # noqa: S608 - constants
        rows = self._store.query(asked, "JSONCompactEachRow").body.splitlines()
        if not rows:
            return "", 0.0
        comment, silent_s = orjson.loads(rows[0])
        return str(comment), float(silent_s)

    def _take_away(self, holder: str) -> None:
        found = _HOLDER.match(holder)
        log.warning("schema lock of a dead collector holder=%r", holder)
        try:
            self._run(f"RENAME TABLE {TABLE} TO {TABLE}_{found[0] if found else 'unknown'}")
        except StoreError as error:  # somebody was faster
            log.info("schema lock not taken away reason=%s", error)
            time.sleep(POLL_S)

    def _release(self) -> None:
        if not self._holder()[0].startswith(self._id):
            return
        database, name = TABLE.split(".")
        asked = f"""
            SELECT name FROM system.tables WHERE database = {quote(database)} AND startsWith(name, {quote(name + "_")})
        """  # noqa: S608 - constants
        for left in self._store.query(asked).body.decode().split():
            self._run(f"DROP TABLE IF EXISTS {database}.{left}")
        self._run(f"DROP TABLE IF EXISTS {TABLE}")

    def _run(self, statement: str) -> None:
        self._store.query(for_cluster(statement, self._cluster))
