"""How clickhouse-go v2 inserts over HTTP, for the official Collector's ClickHouse exporter: it describes the table, and
posts one Native block under the statement, whose list of columns it keeps as it was written."""

import gzip
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext
from clickhouse_connect.driver.transform import NativeTransform

from collector.clickhouse_frames import frames

PROTOCOL = "54483"
"""What it calls client_protocol_version. It counts for answers only: blocks that it sends are of revision 0."""


class RefusedError(Exception):
    """The server's answer. `code`: ClickHouse's."""

    def __init__(self, answer: urllib.error.HTTPError) -> None:
        super().__init__(answer.read().decode())
        self.code = int(answer.headers["X-ClickHouse-Exception-Code"])


class ClickHouseGo:
    """`login`: headers that say who asks. `compress`: lz4, gzip or none, the exporter's option."""

    def __init__(self, url: str, login: Mapping[str, str], compress: str = "none") -> None:
        self._url, self._login, self._compress = url, dict(login), compress

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """One batch. `table` is quoted as in the statement; times are nanoseconds.

        Raises RefusedError, or KeyError for a column that the table has not, or that may not be inserted into.
        """
        types = self.describe(table)
        block = InsertContext(
            table,
            list(columns),
            [get_from_name(types[name]) for name in columns],
            [[row[name] for name in columns] for row in rows],
        )
        _, _, body = b"".join(NativeTransform.build_insert(block)).partition(b"FORMAT Native\n")  # its own statement
        listed = ",\n    ".join(columns)
        self.post(f"INSERT INTO {table} (\n    {listed}\n    ) FORMAT Native", body)

    def describe(self, table: str) -> dict[str, str]:
        """The types of the columns that may be inserted into."""
        answer = self._ask({"default_format": "JSONCompact"}, f"DESCRIBE TABLE {table}".encode(), {})
        described = json.loads(answer)["data"]
        return {name: kind for name, kind, default, *_ in described if default not in {"MATERIALIZED", "ALIAS"}}

    def post(self, statement: str, block: bytes) -> None:
        """The statement in the address, the block as the body."""
        settings = {
            "query": statement,
            "default_format": "Native",
            "client_protocol_version": PROTOCOL,
            "database": "otel",
        }
        headers = {"Content-Type": "application/octet-stream"}
        if self._compress == "gzip":
            block, headers = gzip.compress(block), headers | {"Content-Encoding": "gzip"}
        elif self._compress == "lz4":
            block, settings = frames(block), settings | {"decompress": "1", "compress": "1"}
        self._ask(settings | {"async_insert": "false"}, block, headers)

    def _ask(self, settings: Mapping[str, str], body: bytes, headers: Mapping[str, str]) -> bytes:
        url = f"{self._url}/?{urllib.parse.urlencode(settings)}"
        request = urllib.request.Request(url, data=body, headers=self._login | dict(headers), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as refused:
            raise RefusedError(refused) from refused
