"""The schema: numbered SQL files, applied in order, once each, and recorded in `otel.schema_migrations`.

A file that has been released is never changed; a change is a new file. Every statement can run twice, so a collector
that was killed between a file and its record just applies it again. Of several collectors on one server, one at a
time does so.
"""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from collector.ddl import for_cluster, statements
from collector.retention import Retention
from collector.schema_lock import SchemaLock, Statements
from collector.store import StoreError, quote
from tracegrad.errors import TracegradError

log = logging.getLogger(__name__)

FILES = Path(__file__).parent / "schema"
RECORD = """
CREATE DATABASE IF NOT EXISTS otel;

-- One row is one schema file that has been applied.
CREATE TABLE IF NOT EXISTS otel.schema_migrations
    (number UInt32, name String, applied_at DateTime64(3) DEFAULT now64(3))
ENGINE = ReplacingMergeTree ORDER BY number SETTINGS fsync_after_insert = 1;
"""
UNKNOWN_TABLE, UNKNOWN_DATABASE = 60, 81


@dataclass(frozen=True)
class Schema:
    """What the store should be like. `shared`: other collectors may be at the same work."""

    cluster: str | None = None
    retention: Retention = field(default_factory=lambda: Retention({}))
    shared: bool = False
    files: Path = FILES

    def shipped(self) -> dict[int, Path]:
        """The files by number."""
        return {int(file.name[:4]): file for file in sorted(self.files.glob("[0-9][0-9][0-9][0-9]_*.sql"))}

    def rendered(self, text: str) -> Iterator[str]:
        """The statements of a file, for the cluster where there is one."""
        return (for_cluster(statement, self.cluster) for statement in statements(text))

    def text(self) -> str:
        """All of it as SQL, for those who apply it themselves."""
        parts: list[str] = list(self.rendered(RECORD))
        for number, file in self.shipped().items():
            parts += self.rendered(file.read_text())
            parts.append(_record(number, file))
        parts += (for_cluster(statement, self.cluster) for statement in self.retention.statements())
        return ";\n\n".join(parts) + ";\n"


def apply(store: Statements, schema: Schema) -> int:
    """Make the store as `schema` says; returns its number.

    Raises TracegradError where the store is newer, StoreError where it refuses.
    """
    shipped = schema.shipped()
    missing = sorted(shipped.keys() - _applied_of(store, shipped))
    if not missing and not schema.retention.changes(store):
        return max(shipped)
    for statement in schema.rendered(RECORD):
        store.query(statement)
    lock = SchemaLock(store, schema.cluster)
    with lock.held() if schema.shared else nullcontext():
        for number in sorted(shipped.keys() - _applied_of(store, shipped)):
            for statement in schema.rendered(shipped[number].read_text()):
                store.query(statement)
            if schema.shared:
                lock.still_here()
            store.query(_record(number, shipped[number]))
            log.info("schema applied number=%d name=%s", number, shipped[number].stem)
        for change in schema.retention.changes(store):
            store.query(for_cluster(change, schema.cluster))
            log.info("retention changed statement=%r", change)
    return max(shipped)


def require(store: Statements, schema: Schema) -> int:
    """For `create_schema = false`: raise TracegradError unless somebody has applied all of `schema`'s files."""
    shipped = schema.shipped()
    if missing := shipped.keys() - _applied_of(store, shipped):
        raise TracegradError(
            f"the store lacks schema {min(missing)} to {max(missing)}, and create_schema is false: apply what "
            "`tracegrad collector --print-schema` prints"
        )
    return max(shipped)


def _applied_of(store: Statements, shipped: dict[int, Path]) -> set[int]:
    """The numbers of the files that have been applied, of which some may be shipped no more."""
    try:
        rows = store.query("SELECT DISTINCT number FROM otel.schema_migrations").body.decode().split()
    except StoreError as error:
        if error.code in (UNKNOWN_TABLE, UNKNOWN_DATABASE):
            return set()
        raise
    applied = {int(row) for row in rows}
    if applied and max(applied) > max(shipped):
        raise TracegradError(
            f"the store has schema {max(applied)}, this tracegrad knows up to {max(shipped)}: upgrade tracegrad "
            "or choose another store"
        )
    return applied


def _record(number: int, file: Path) -> str:
    return f"INSERT INTO otel.schema_migrations (number, name) VALUES ({number}, {quote(file.stem)})"  # noqa: S608 - ours
