"""clickhouse-go in HTTP mode, as Grafana's plug-in and the official exporter use it.

No Go toolchain with its modules can be had where these tests run, so its requests are replayed as its source
(conn_http.go, conn_http_query.go, conn_http_batch.go of v2) makes them, and its answers are read as its block.go does:
the first with the client's own protocol version, all others with the revision that the first one tells.
"""

import gzip
import http.client
import io
import secrets
import struct
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.ctypes import RespBuffCls
from clickhouse_connect.driver.insert import InsertContext
from clickhouse_connect.driver.query import QueryContext
from clickhouse_connect.driver.transform import NativeTransform

from collector import clickhouse_frames

HELLO = "SELECT displayName(), version(), revision(), timezone()"
BUCKETS_SINCE, CUSTOM_SINCE = 54480, 54454


@dataclass
class GoClient:
    """`method`: lz4, zstd, gzip or none. The plug-in's is gzip, the library's examples say lz4."""

    fetch: Callable[..., Any]
    url: str
    method: str
    protocol: int
    login: dict[str, str] = field(default_factory=dict)
    revision: int = -1

    def connect(self) -> tuple[str, str, str]:
        """What it learns at first: display name, version, time zone."""
        block = io.BytesIO(self.query(HELLO))
        info = block.read(8)
        assert info == b"\x01\x00\x02\xff\xff\xff\xff" + (b"\x03" if self.protocol >= BUCKETS_SINCE else b"\x00")
        if self.protocol >= BUCKETS_SINCE:
            assert block.read(2) == b"\x00\x00"
        assert (_varint(block), _varint(block)) == (4, 1)
        values = []
        for name in ("displayName()", "version()", "revision()", "timezone()"):
            kind = "UInt32" if name == "revision()" else "String"
            assert (_text(block), _text(block)) == (name, kind)
            if self.protocol >= CUSTOM_SINCE:
                assert block.read(1) == b"\x00", "it knows no custom serialisation"
            values.append(struct.unpack("<I", block.read(4))[0] if kind == "UInt32" else _text(block))
        assert block.read() == b""
        self.revision = values.pop(2)
        return tuple(values)  # type: ignore[return-value]

    def rows(self, sql: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Columns and rows. Blocks of revision 0 are what clickhouse-connect reads."""
        assert self.revision == 0, "else blocks begin with their info, and columns say how they are serialised"
        source = _Source(self.query(sql))
        result = NativeTransform().parse_response(RespBuffCls(source), QueryContext())
        return result.column_names, result.result_rows

    def query(self, sql: str) -> bytes:
        """The plain answer."""
        parameters, headers = {}, {}
        if self.method in ("lz4", "zstd"):
            parameters["compress"] = "1"
        elif self.method == "gzip":
            headers["Accept-Encoding"] = "gzip"
        try:
            reply = self._post(parameters, headers, sql.encode())
        except http.client.IncompleteRead as cut:  # it looks at what it got
            return self._plain(cut.partial)
        reply_body = self._plain(reply.body)
        if reply.status != 200:
            raise RuntimeError(f"[HTTP {reply.status}] response body: {reply_body.decode()}")
        return reply_body

    def _plain(self, body: bytes) -> bytes:
        if self.method in ("lz4", "zstd"):
            return b"".join(clickhouse_frames.plain(io.BytesIO(body)))
        return gzip.decompress(body) if self.method == "gzip" and body else body

    def insert(self, table: str, types: dict[str, str], rows: list[list[Any]]) -> None:
        """A batch: the statement in the address, one block as the body."""
        block = InsertContext(table, list(types), [get_from_name(kind) for kind in types.values()], rows)
        _, _, body = b"".join(NativeTransform.build_insert(block)).partition(b"FORMAT Native\n")
        parameters = {"query": f"INSERT INTO {table} ({', '.join(types)}) FORMAT Native"}
        headers = {"Content-Type": "application/octet-stream"}
        if self.method == "gzip":
            body, headers = gzip.compress(body), headers | {"Content-Encoding": "gzip"}
        elif self.method in ("lz4", "zstd"):
            method = clickhouse_frames.LZ4 if self.method == "lz4" else clickhouse_frames.ZSTD
            body = clickhouse_frames.frames(body, method)
            parameters |= {"compress": "1", "decompress": "1"}
        reply = self._post(parameters, headers, body)
        assert reply.status == 200, reply.body

    def _post(self, parameters: dict[str, str], headers: dict[str, str], body: bytes) -> Any:
        given = {
            "client_protocol_version": str(self.protocol),
            "database": "otel",
            "default_format": "Native",
        }
        named = {"User-Agent": "clickhouse-go/2.40.0 (lv:go/1.25; os:linux)"} | self.login | headers
        query = urllib.parse.urlencode(sorted((given | parameters).items()))
        return self.fetch(f"{self.url}?{query}", body, **named)


class _Source:
    def __init__(self, body: bytes) -> None:
        self.gen = iter([body])

    def close(self) -> None:
        """Nothing to give back."""


def _varint(block: io.BytesIO) -> int:
    value = shift = 0
    while (byte := block.read(1)[0]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value | byte << shift


def _text(block: io.BytesIO) -> str:
    return block.read(_varint(block)).decode()


@pytest.fixture(params=["none", "gzip", "lz4", "zstd"])
def go(request: pytest.FixtureRequest, collector: Any, fetch: Any) -> GoClient:
    """A connected one that reads."""
    made = GoClient(fetch, collector.clickhouse, request.param, 54483)
    made.connect()
    return made


@pytest.fixture
def table(collector: Any) -> Iterator[str]:
    name = f"go_{secrets.token_hex(4)}"
    columns = "k UInt32, v String, at DateTime64(9), m Map(LowCardinality(String), String), n Nullable(Float64)"
    collector.sql(f"CREATE TABLE {name} ({columns}) ENGINE = MergeTree ORDER BY k")
    yield name
    collector.sql(f"DROP TABLE {name}")


@pytest.mark.parametrize("method", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("protocol", [54453, 54460, 54483])
def test_it_connects(collector: Any, fetch: Any, method: str, protocol: int) -> None:
    client = GoClient(fetch, collector.clickhouse, method, protocol)
    name, version, timezone = client.connect()
    assert (name, timezone) == ("tracegrad", "Etc/UTC")
    assert int(version.partition(".")[0]) >= 26
    assert client.rows("SELECT 1") == (("1",), [(1,)]), "its ping"


def test_it_reads_and_writes(go: GoClient, collector: Any, table: str) -> None:
    go.login = collector.writer
    types = {
        "k": "UInt32",
        "v": "String",
        "at": "DateTime64(9)",
        "m": "Map(LowCardinality(String), String)",
        "n": "Nullable(Float64)",
    }
    rows = [[number, f"row {number}", number * 10**9, {"a": str(number)}, None] for number in range(1, 5001)]
    go.insert(table, types, rows)
    names, back = go.rows(f"SELECT k, v, toUnixTimestamp64Nano(at) AS at, m, n FROM {table} ORDER BY k")
    assert names == ("k", "v", "at", "m", "n")
    assert [list(row) for row in back] == rows
    described = {row[0]: row[1] for row in go.rows(f"DESCRIBE TABLE {table}")[1]}
    assert described == types


def test_empty_and_large_results(go: GoClient, table: str) -> None:
    assert go.rows(f"SELECT k, m FROM {table}") == (("k", "m"), [])
    names, rows = go.rows("SELECT number AS n, toString(number) AS s FROM numbers(300000)")
    assert (names, len(rows), rows[-1]) == (("n", "s"), 300_000, (299_999, "299999"))


def test_its_errors(go: GoClient) -> None:
    with pytest.raises(RuntimeError, match=r"\[HTTP 404\].*UNKNOWN_TABLE"):
        go.query("SELECT * FROM not_there")
    broken = go.query("SELECT number, throwIf(number = 3000000) FROM numbers(4000000)")
    assert b"__exception__\r\n" in broken[-16_384:], "where it looks when a block cannot be read"
    assert b"FUNCTION_THROW_IF_VALUE_IS_NON_ZERO" in broken[-16_384:]
