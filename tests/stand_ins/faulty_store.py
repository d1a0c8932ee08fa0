"""A store that fails, refuses or is still at work, as a test tells it. Its rows are what protobuf reads."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from otlp_rows import rows_of

from collector.signals import Signal

_BETWEEN = re.compile(r"WHERE IngestId BETWEEN (\d+) AND (\d+)")


class FaultyStore:
    """Rows by id. `fault` sees the rows of each insert, and raises what is to go wrong: then half of them are in."""

    name = "faulty"

    def __init__(self, fault: Callable[[list[Any]], None] = lambda rows: None) -> None:
        self.fault = fault
        self.rows: dict[int, Any] = {}
        self.calls: list[str] = []
        self.running: list[bool] = []

    def insert(self, signal: Signal, rows: Iterable[bytes], query_id: str) -> None:
        self.calls.append("insert")
        found = rows_of(signal, b"".join(rows))
        try:
            self.fault(found)
        except BaseException:
            self._take(found[: (len(found) + 1) // 2])
            raise
        self._take(found)

    def _take(self, rows: list[Any]) -> None:
        for row in rows:
            assert row.ingest_id not in self.rows, "stored twice"
            self.rows[row.ingest_id] = row

    def delete(self, table: str, where: str) -> int:
        self.calls.append("delete")
        found = _BETWEEN.fullmatch(where)
        assert found is not None
        gone = [number for number in self.rows if int(found[1]) <= number <= int(found[2])]
        for number in gone:
            del self.rows[number]
        return len(gone)

    def is_running(self, query_id: str) -> bool:
        self.calls.append("is_running")
        return bool(self.running) and self.running.pop(0)

    @property
    def names(self) -> list[str]:
        """Of the spans, in the order of their ids."""
        return [row.record.name for _, row in sorted(self.rows.items())]


def named(name: str, error: Exception) -> Callable[[list[Any]], None]:
    """A fault of every insert that has a record of this name."""

    def fault(rows: list[Any]) -> None:
        if any(row.record.name == name for row in rows):
            raise error

    return fault


def first(count: int, error: BaseException) -> Callable[[list[Any]], None]:
    """A fault of so many inserts, whatever is in them."""
    left = [count]

    def fault(rows: list[Any]) -> None:
        if left[0]:
            left[0] -= 1
            raise error

    return fault
