"""The schema: numbered SQL files, applied in order, once each, and recorded in `otel.schema_migrations`.

A file that has been released is never changed; a change is a new file. Every statement can run twice, so a collector
that was killed between a file and its record just applies it again.
"""

import logging
from pathlib import Path

from collector.engine import Connection, quote
from tracegrad.errors import TracegradError

log = logging.getLogger(__name__)

FILES = Path(__file__).parent / "schema"
RECORD = """
CREATE DATABASE IF NOT EXISTS otel;
CREATE TABLE IF NOT EXISTS otel.schema_migrations
    (number UInt32, name String, applied_at DateTime64(3) DEFAULT now64(3))
ENGINE = ReplacingMergeTree ORDER BY number SETTINGS fsync_after_insert = 1;
"""


def migrate(connection: Connection, files: Path = FILES) -> int:
    """Bring the store to the newest schema; returns its number. Raises TracegradError where the store is newer."""
    shipped = {int(file.name[:4]): file for file in sorted(files.glob("[0-9][0-9][0-9][0-9]_*.sql"))}
    connection.query(RECORD)
    rows = connection.query("SELECT DISTINCT number FROM otel.schema_migrations").body.decode().split()
    applied = {int(row) for row in rows}
    if newer := applied - shipped.keys():
        raise TracegradError(
            f"the store has schema {max(newer)}, this tracegrad knows up to {max(shipped)}: upgrade tracegrad "
            "or choose another --data"
        )
    for number in sorted(shipped.keys() - applied):
        connection.query(shipped[number].read_text())
        row = f"({number}, {quote(shipped[number].stem)})"
        connection.query("INSERT INTO otel.schema_migrations (number, name) VALUES " + row)  # noqa: S608 - our file names
        log.info("schema applied number=%d name=%s", number, shipped[number].stem)
    return max(shipped)
