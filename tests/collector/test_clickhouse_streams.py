"""Answers as they come: errors in their middle, readers that are slow or gone, memory, encodings, large requests."""

import concurrent.futures
import gzip
import http.client
import io
import json
import os
import re
import secrets
import socket
import time
import urllib.parse
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import lz4.frame
import psutil
import pytest
import zstandard
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError

from collector import clickhouse_body, clickhouse_frames
from collector.clickhouse_body import MEMORY_BYTES, Body
from collector.compression import EncodingError, TooLargeError

BROKEN = "SELECT number, throwIf(number = 5000000) FROM numbers(6000000)"
MEMORY = 1_200_000_000
"""What the whole process may take."""


@pytest.fixture
def table(collector: Any) -> Iterator[str]:
    """A table (k UInt32, v String) of the test's own."""
    name = f"t_{secrets.token_hex(4)}"
    collector.sql(f"CREATE TABLE {name} (k UInt32, v String) ENGINE = MergeTree ORDER BY k")
    yield name
    collector.sql(f"DROP TABLE {name}")


def expand(encoding: str, body: bytes) -> bytes:
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True).read()
    return {"gzip": gzip.decompress, "deflate": zlib.decompress, "lz4": lz4.frame.decompress}[encoding](body)


def shrink(encoding: str, body: bytes) -> bytes:
    return {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "lz4": lz4.frame.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }[encoding](body)


@pytest.mark.parametrize("compression", ["lz4", "zstd", "gzip", False])
def test_an_error_in_the_middle_reaches_who_streams(collector: Any, compression: Any) -> None:
    client = collector.client(compress=compression)
    rows = 0
    with (
        pytest.raises(StreamFailureError, match=r"Code: 395.*FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
        client.query_row_block_stream(BROKEN) as stream,
    ):
        for block in stream:
            rows += len(block)
    assert 0 < rows < 5_000_000
    with pytest.raises(DatabaseError, match="Code: 395"):
        client.query(BROKEN)
    assert client.query("SELECT 1").first_row == (1,), "the connection pool is fine"
    client.close()


async def test_an_error_in_the_middle_reaches_the_async_client(collector: Any) -> None:
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    client = await clickhouse_connect.get_async_client(host=host, port=int(port), database="otel")
    with pytest.raises(DatabaseError, match="Code: 395"):
        await client.query(BROKEN)
    assert (await client.query("SELECT 1")).first_row == (1,)
    await client.close()


def test_an_error_in_the_middle_is_marked_and_cuts_the_connection(collector: Any) -> None:
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("POST", "/", BROKEN)
    answer = connection.getresponse()
    tag = answer.headers["X-ClickHouse-Exception-Tag"]
    assert (answer.status, re.fullmatch("[a-z]{16}", tag) is not None) == (200, True)
    with pytest.raises(http.client.IncompleteRead) as cut:
        answer.read()
    found = re.search(
        rb"\r\n__exception__\r\n"
        + tag.encode()
        + rb"\r\n(Code: 395\..*\n)(\d+) "
        + tag.encode()
        + rb"\r\n__exception__\r\n$",
        cut.value.partial,
        re.DOTALL,
    )
    assert found is not None
    assert len(found[1]) == int(found[2])
    assert connection.sock is None or connection.sock.recv(1) == b""


def test_an_error_before_the_end_of_what_is_held_back_has_its_status(collector: Any, fetch: Any) -> None:
    soon = b"SELECT number, throwIf(number = 100000) FROM numbers(200000)"
    for parameters in ("", "?wait_end_of_query=1", "?buffer_size=4000000"):
        reply = fetch(f"{collector.clickhouse}/{parameters}", soon)
        assert (reply.status, reply.headers["X-ClickHouse-Exception-Code"]) == (500, "395")
        assert reply.body.startswith(b"Code: 395.")
    late = fetch(f"{collector.clickhouse}/?wait_end_of_query=1", BROKEN.encode())
    assert (late.status, late.body[:10]) == (500, b"Code: 395.")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "lz4", "zstd", ""])
@pytest.mark.parametrize("parameters", ["", "wait_end_of_query=1", "buffer_size=0"])
@pytest.mark.parametrize("rows", [0, 3, 3_000_000])
def test_every_encoding_of_every_size(collector: Any, fetch: Any, encoding: str, parameters: str, rows: int) -> None:
    headers = {"Accept-Encoding": f"br, {encoding};q=0.5"} if encoding else {}
    reply = fetch(f"{collector.clickhouse}/?{parameters}", f"SELECT number FROM numbers({rows})".encode(), **headers)
    assert reply.headers.get("Content-Encoding", "") == (encoding if rows else "")
    body = expand(encoding, reply.body) if encoding and rows else reply.body
    assert body.count(b"\n") == rows
    assert body.endswith(f"{rows - 1}\n".encode() if rows else b"")
    summary = json.loads(reply.headers["X-ClickHouse-Summary"])
    assert int(summary["read_rows"]) >= (rows if rows < 10 or "wait" in parameters else 0)


def test_who_wants_no_encoding_gets_none(collector: Any, fetch: Any) -> None:
    for parameters, accept in (("enable_http_compression=0", "gzip"), ("", "gzip;q=0"), ("", "br")):
        reply = fetch(f"{collector.clickhouse}/?{parameters}", b"SELECT 1", accept_encoding=accept)
        assert (reply.body, reply.headers.get("Content-Encoding")) == (b"1\n", None)


@pytest.mark.parametrize(
    "output_format",
    ["JSON", "JSONCompact", "XML", "Parquet", "Arrow", "CSVWithNames", "RowBinaryWithNamesAndTypes", "Vertical"],
)
def test_a_streamed_answer_is_one_document(collector: Any, fetch: Any, output_format: str) -> None:
    rows = 400_000
    asked = f"SELECT number AS n, 'x' AS x FROM numbers({rows}) FORMAT {output_format}".encode()
    reply = fetch(f"{collector.clickhouse}/?output_format_pretty_max_rows=1000000", asked)
    body = reply.body
    match output_format:
        case "JSON" | "JSONCompact":
            document = json.loads(body)
            assert (document["rows"], len(document["data"]), document["meta"][0]["name"]) == (rows, rows, "n")
        case "XML":
            assert (body.count(b"<?xml"), body.count(b"<row>")) == (1, rows)
        case "Parquet":
            assert (body[:4], body[-4:], body.count(b"PAR1")) == (b"PAR1", b"PAR1", 2)
        case "Arrow":
            assert (body[:6], body[-6:]) == (b"ARROW1", b"ARROW1")
        case "CSVWithNames":
            assert (body.count(b'"n"'), body.count(b"\n")) == (1, rows + 1)
        case "RowBinaryWithNamesAndTypes":
            assert (body.count(b"UInt64"), len(body)) == (1, 20 + rows * 10 - 1)
        case "Vertical":
            assert body.count(b"Row ") == rows


def test_a_slow_reader_takes_little_memory_and_gets_everything(collector: Any) -> None:
    process = psutil.Process(collector.process.pid)
    before = process.memory_info().rss
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("POST", "/", "SELECT repeat('x', 99) FROM numbers(10000000) FORMAT TSV")  # 1 GB
    answer = connection.getresponse()
    taken = 0
    for _ in range(5):
        taken += len(answer.read(1 << 20))
        time.sleep(0.2)
    assert process.memory_info().rss - before < 200 << 20
    while piece := answer.read(1 << 20):
        taken += len(piece)
    assert taken == 1_000_000_000
    assert process.memory_info().rss < MEMORY
    connection.close()


def test_a_reader_that_goes_in_the_middle_takes_the_statement_with_it(collector: Any) -> None:
    name = secrets.token_hex(8)
    running = f"SELECT count() FROM system.processes WHERE Settings['log_comment'] = '{name}'"
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    asked = b"SELECT number FROM numbers(100000000000) FORMAT TSV"
    head = f"POST /?query_id={name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(asked)}\r\n\r\n"
    connection.sendall(head.encode() + asked)
    assert len(connection.recv(1 << 16)) > 0
    assert collector.sql(running) == "1"
    connection.close()
    deadline = time.monotonic() + 30
    while collector.sql(running) != "0":
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_statements_together_stay_within_the_memory_of_the_process(collector: Any, fetch: Any) -> None:
    """Each would take some GB: they are refused or go on on disk, and the process answers others meanwhile."""
    heavy = [
        "SELECT length(groupArray(number)) FROM numbers(200000000)",
        "SELECT count() FROM (SELECT number AS k, count() FROM numbers(20000000) GROUP BY k)",
        "SELECT max(s) FROM (SELECT toString(number) AS s FROM numbers(10000000) ORDER BY cityHash64(s) LIMIT 9000000)",
        "SELECT length(arrayStringConcat(groupArray(repeat('x', 1000)))) FROM numbers(1000000)",
    ]
    process = psutil.Process(collector.process.pid)
    most = 0
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        replies = [threads.submit(fetch, collector.clickhouse, sql.encode()) for sql in heavy * 2]
        while not all(reply.done() for reply in replies):
            most = max(most, process.memory_info().rss)
            assert fetch(collector.clickhouse + "/ping").status == 200
            time.sleep(0.02)
    assert most < MEMORY
    codes = {reply.result().headers.get("X-ClickHouse-Exception-Code", "0") for reply in replies}
    assert codes <= {"0", "241"}
    assert codes >= {"241"}, "a statement is bounded"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "lz4", "zstd", "frames", "frames in gzip", ""])
def test_inserts_larger_than_what_is_kept_in_memory(collector: Any, fetch: Any, table: str, encoding: str) -> None:
    rows = 400_000
    body = b"".join(b"%d,row %d of them\n" % (number, number) for number in range(rows))
    assert len(body) > 2 * MEMORY_BYTES
    parameters = {"query": f"INSERT INTO {table} FORMAT CSV", "database": "otel"}
    headers = dict(collector.writer)
    if "frames" in encoding:
        body, parameters["decompress"] = clickhouse_frames.frames(body), "1"
    if encoding not in ("", "frames"):
        headers["Content-Encoding"] = name = encoding.rpartition(" ")[2]
        body = shrink(name, body)
    reply = fetch(f"{collector.clickhouse}/?{urllib.parse.urlencode(parameters)}", body, **headers)
    assert (reply.status, reply.body) == (200, b"")
    assert json.loads(reply.headers["X-ClickHouse-Summary"])["written_rows"] == str(rows)
    assert (
        collector.sql(f"SELECT count(), sum(k), max(v) FROM {table}")
        == f"{rows}\t{rows * (rows - 1) // 2}\trow 99999 of them"
    )


def test_a_statement_in_front_of_much_data(collector: Any, fetch: Any, table: str) -> None:
    body = f"INSERT INTO otel.{table} FORMAT CSV\n".encode() + b"".join(b"%d,x\n" % n for n in range(1_000_000))
    assert fetch(collector.clickhouse, body, **collector.writer).status == 200
    assert collector.sql(f"SELECT count(), max(k) FROM {table}") == "1000000\t999999"
    values = f"INSERT INTO otel.{table} VALUES ".encode() + b",".join(b"(%d,'v')" % n for n in range(200_000))
    assert fetch(collector.clickhouse, values, **collector.writer).status == 200
    assert collector.sql(f"SELECT count() FROM {table} WHERE v = 'v'") == "200000"


def test_an_upload_that_breaks_off_inserts_nothing(collector: Any, table: str) -> None:
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    login = "".join(f"{name}: {value}\r\n" for name, value in collector.writer.items())
    head = f"POST /?query=INSERT+INTO+otel.{table}+FORMAT+CSV HTTP/1.1\r\nHost: localhost\r\n{login}"
    connection = socket.create_connection((host, int(port)))
    connection.sendall((head + "Content-Length: 100000000\r\n\r\n").encode() + b"1,a\n" * 2_000_000)
    connection.close()
    time.sleep(0.5)
    assert collector.sql(f"SELECT count() FROM {table}") == "0"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "lz4", "zstd", "frames"])
def test_damaged_bodies_are_refused(tmp_path: Path, encoding: str) -> None:
    data = os.urandom(100_000)
    whole = clickhouse_frames.frames(data) if encoding == "frames" else shrink(encoding, data)

    def decoded(body: bytes) -> bytes:
        with Body(tmp_path, body) as raw:
            if encoding == "frames":
                return raw.decoded("", framed=True).read()
            return raw.decoded(encoding, framed=False).read()

    assert decoded(whole) == data
    middle = len(whole) // 2
    changed = whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 4]) + whole[middle + 4 :]
    for damaged in (
        whole[:-1],
        whole[:20],
        changed if encoding in ("gzip", "deflate", "frames") else whole[9:],
        b"nonsense" * 10,
    ):
        with pytest.raises(EncodingError):
            decoded(damaged)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "lz4", "zstd"])
def test_little_that_becomes_much_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    bomb = shrink(encoding, bytes(256 << 20))
    with Body(tmp_path, bomb) as raw:
        before = psutil.Process().memory_info().rss
        with raw.decoded(encoding, framed=False) as plain:
            assert plain.size == 256 << 20
            assert psutil.Process().memory_info().rss - before < 64 << 20
        monkeypatch.setattr(clickhouse_body, "MAX_BODY_BYTES", 100 << 20)
        with pytest.raises(TooLargeError):
            raw.decoded(encoding, framed=False)
    assert not list(tmp_path.iterdir()), "the files have no name"
