"""The store, asked by the files in `queries/`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from clickhouse_connect.driver.client import Client

from tracegrad import clickhouse


@dataclass(frozen=True)
class Store:
    """An open connection. `url`: for messages."""

    url: str
    client: Client

    def ask(self, query: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """The rows of a query. Raises TracegradError, UnreachableError when the store is gone by now."""
        text = resources.files("reward").joinpath("queries", f"{query}.sql").read_text()
        with clickhouse.errors_in_one_line(self.url):
            rows: Sequence[Sequence[Any]] = self.client.query(text, parameters=dict(parameters)).result_rows
            return rows
