"""How long rows are kept: a TTL on every table of telemetry, by its kind. What training wrote is kept for good.

A part goes when all of its rows are due; parts are by day, so rows may outlive their time by a day. Timestamps far in
the future, which would turn over in a DateTime and so be due at once, count as of the year 2090.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from collector.schema_lock import Statements
from collector.store import quote

_TIME = "toDateTime(least({}, toDateTime64('2090-01-01 00:00:00', 9, 'UTC')))"
TABLES = {
    "otel_traces": ("traces", _TIME.format("Timestamp")),
    "otel_traces_trace_id_ts": ("traces", "Start"),
    "otel_logs": ("logs", _TIME.format("Timestamp")),
    "otel_metrics_gauge": ("metrics", _TIME.format("TimeUnix")),
    "otel_metrics_sum": ("metrics", _TIME.format("TimeUnix")),
    "otel_metrics_histogram": ("metrics", _TIME.format("TimeUnix")),
    "otel_metrics_exponential_histogram": ("metrics", _TIME.format("TimeUnix")),
    "otel_metrics_summary": ("metrics", _TIME.format("TimeUnix")),
}
"""For each table: its kind, and when a row was. Rows of other tables are kept for good."""

_INTERVALS = {"h": "toIntervalHour", "d": "toIntervalDay", "w": "toIntervalWeek"}
_TTL_OF_ENGINE = re.compile(r"\sTTL (?P<ttl>.*?)(?:\sSETTINGS\s.*)?$", re.DOTALL)
_SETTINGS = "ttl_only_drop_parts = 1, materialize_ttl_recalculate_only = 1"
"""Expired parts are dropped, never rewritten; nor are parts when only the TTL of a table changes."""


@dataclass(frozen=True)
class Retention:
    """How long each kind is kept, as `30d`, `12h` or `4w`; a kind that is not there, for ever."""

    kinds: Mapping[str, str]

    def ttl(self, table: str) -> str | None:
        """The TTL expression of one of `TABLES`."""
        kind, when = TABLES[table]
        kept = self.kinds.get(kind)
        return f"{when} + {_INTERVALS[kept[-1]]}({int(kept[:-1])})" if kept else None

    def statements(self) -> Iterator[str]:
        """What gives fresh tables their TTL."""
        for table in TABLES:
            if (ttl := self.ttl(table)) is not None:
                yield from _give(table, ttl)

    def changes(self, store: Statements) -> list[str]:
        """What must run so that the tables there have the TTL they should. Raises StoreError."""
        names = ", ".join(quote(table) for table in TABLES)
        asked = f"SELECT name, engine_full FROM system.tables WHERE database = 'otel' AND name IN ({names})"  # noqa: S608
        rows = [orjson.loads(row) for row in store.query(asked, "JSONCompactEachRow").body.splitlines()]
        wanted = {name: self.ttl(name) for name, _ in rows}
        written = _as_written_by(store, {ttl for ttl in wanted.values() if ttl is not None})
        changes: list[str] = []
        for name, engine in sorted(rows):
            ttl, found = wanted[name], _TTL_OF_ENGINE.search(engine)
            if ttl is None and found:
                changes.append(f"ALTER TABLE otel.{name} REMOVE TTL")
            elif ttl is not None and (found is None or found["ttl"] != written[ttl]):
                changes += _give(name, ttl)
        return changes


def _give(table: str, ttl: str) -> list[str]:
    return [f"ALTER TABLE otel.{table} MODIFY SETTING {_SETTINGS}", f"ALTER TABLE otel.{table} MODIFY TTL {ttl}"]


def _as_written_by(store: Statements, expressions: set[str]) -> dict[str, str]:
    """The expressions as this server writes them, to compare with what it says of its tables."""
    written = {}
    for expression in expressions:
        create = f"CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a TTL {expression} SETTINGS b = 1"
        answer = store.query(f"SELECT formatQuerySingleLine({quote(create)})", "TSVRaw").body.decode()
        found = _TTL_OF_ENGINE.search(answer.strip())
        written[expression] = found["ttl"] if found else expression
    return written
