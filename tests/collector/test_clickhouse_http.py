"""ClickHouse's HTTP interface with unmodified clients: clickhouse-connect, curl's kind of requests, `tracegrad sql`."""

import concurrent.futures
import datetime
import gzip
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import lz4.frame
import pandas as pd
import pytest
import zstandard
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.clickhouse_queries import THREADS
from collector.clickhouse_turns import MAX_WAITING


@pytest.fixture
def client(collector: Any) -> Iterator[Any]:
    made = collector.client()
    yield made
    made.close()


@pytest.fixture
def table(client: Any) -> Iterator[str]:
    """An empty table (k UInt32, v String, at DateTime64(3)) of the test's own."""
    name = f"t_{secrets.token_hex(4)}"
    client.command(f"CREATE TABLE {name} (k UInt32, v String, at DateTime64(3)) ENGINE = MergeTree ORDER BY k")
    yield name
    client.command(f"DROP TABLE {name}")


AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000)


def test_query_insert_and_command(client: Any, table: str) -> None:
    summary = client.insert(table, [[1, "one", AT], [2, "zwei \u2713 \t\n\\", AT]], column_names=["k", "v", "at"])
    assert summary.written_rows == 2
    result = client.query(f"SELECT * FROM {table} WHERE k > {{low:UInt32}} ORDER BY k", parameters={"low": 0})
    assert result.result_rows == [(1, "one", AT), (2, "zwei \u2713 \t\n\\", AT)]
    assert client.command(f"SELECT count() FROM {table}") == 2


def test_parameters_reach_the_query_as_they_are(client: Any) -> None:
    odd = "tab\t newline\n quote' back\\slash \u2713"
    asked = "SELECT {text:String}, {list:Array(String)}, {number:Float64}, {none:Nullable(String)}"
    given = {"text": odd, "list": [odd, "b"], "number": -0.1, "none": None}
    assert client.query(asked, parameters=given).first_row == (odd, [odd, "b"], -0.1, None)


def test_an_empty_result_has_its_columns(client: Any, table: str) -> None:
    result = client.query(
        f"SELECT k, v AS named, [at] AS times FROM {table} WHERE k = {{k:UInt32}}", parameters={"k": 1}
    )
    assert (result.column_names, result.result_rows) == (("k", "named", "times"), [])
    assert [kind.name for kind in result.column_types] == ["UInt32", "String", "Array(DateTime64(3))"]
    assert client.query(f"WITH 1 AS one SELECT one, k FROM {table}").column_names == ("one", "k")
    assert client.query("SHOW TABLES LIKE 'there is none'").column_names == ("name",)


def test_data_frames(client: Any, table: str) -> None:
    frame = pd.DataFrame({"k": [3, 4], "v": ["a", "b"], "at": [pd.Timestamp(AT)] * 2})
    client.insert_df(table, frame)
    back = client.query_df(f"SELECT * FROM {table} ORDER BY k")
    assert back["k"].tolist() == [3, 4]
    assert back["v"].tolist() == ["a", "b"]


def test_large_results_and_inserts_in_every_compression(collector: Any, table: str) -> None:
    for compression in ("lz4", "zstd", "gzip", False):
        client = collector.client(compress=compression)
        rows = [[index, f"row {index}" * 5, AT] for index in range(30_000)]
        client.insert(table, rows, column_names=["k", "v", "at"])
        assert client.query(f"SELECT v FROM {table} ORDER BY k").result_columns[0] == [row[1] for row in rows]
        client.command(f"TRUNCATE TABLE {table}")
        client.close()


async def test_the_async_client(collector: Any, table: str) -> None:
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    client = await clickhouse_connect.get_async_client(
        host=host, port=int(port), database="otel", username="writer", password=collector.writer["X-ClickHouse-Key"]
    )
    await client.insert(table, [[1, "x", AT]], column_names=["k", "v", "at"])
    result = await client.query(f"SELECT v FROM {table}")
    assert result.result_rows == [("x",)]
    await client.close()


def test_errors_have_their_code(client: Any, table: str) -> None:
    with pytest.raises(DatabaseError, match="UNKNOWN_TABLE") as raised:
        client.query("SELECT * FROM not_there")
    assert raised.value.code == 60
    with pytest.raises(DatabaseError, match="Syntax error"):
        client.query("SELECT FROM WHERE")
    with pytest.raises(DatabaseError, match="UNKNOWN_SETTING"):
        client.query("SELECT 1", settings={"no_such_setting": 1})
    client.command(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK k < 10")
    with pytest.raises(DatabaseError, match="VIOLATED_CONSTRAINT"):
        client.insert(table, [[11, "x", AT]], column_names=["k", "v", "at"])
    assert client.command(f"SELECT count() FROM {table}") == 0


def test_a_failed_insert_through_a_view_is_an_error(client: Any, table: str) -> None:
    client.command(f"CREATE TABLE {table}_n (k UInt32, v String, at DateTime64(3)) ENGINE = Null")
    select = f"SELECT k, toString(throwIf(v = 'bad')) AS v, at FROM {table}_n"
    client.command(f"CREATE MATERIALIZED VIEW {table}_v TO {table} AS {select}")
    client.insert(f"{table}_n", [[1, "good", AT]], column_names=["k", "v", "at"])
    with pytest.raises(DatabaseError, match="THROW_IF"):
        client.insert(f"{table}_n", [[2, "bad", AT]], column_names=["k", "v", "at"])
    assert client.command(f"SELECT count() FROM {table}") == 1
    client.command(f"DROP TABLE {table}_v")
    client.command(f"DROP TABLE {table}_n")


def test_a_session_keeps_its_tables_and_settings_and_others_do_not_see_them(collector: Any) -> None:
    one, other = collector.client(session_id=secrets.token_hex(4)), collector.client()
    one.command("CREATE TEMPORARY TABLE mine (x UInt8)")
    one.insert("mine", [[7]], column_names=["x"])
    one.command("SET max_block_size = 123")
    assert one.command("SELECT x FROM mine") == 7
    assert one.query("SELECT getSetting('max_block_size')", settings={"max_block_size": 456}).first_row[0] == 456
    assert one.command("SELECT getSetting('max_block_size')") == 123
    assert other.command("SELECT getSetting('max_block_size')") != 123
    with pytest.raises(DatabaseError, match="UNKNOWN_TABLE"):
        other.command("SELECT x FROM mine")
    one.close()
    other.close()


def test_sessions_are_checked_and_locked(collector: Any, fetch: Any) -> None:
    session = secrets.token_hex(4)
    url = f"{collector.clickhouse}/?session_id={session}"
    assert b"there is no session" in fetch(f"{url}&session_check=1", b"SELECT 1").body
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        slow = threads.submit(fetch, url, b"SELECT sleep(1)")
        time.sleep(0.4)
        assert fetch(url, b"SELECT 1").headers["X-ClickHouse-Exception-Code"] == "373"
        assert slow.result().status == 200
    assert fetch(f"{url}&session_check=1", b"SELECT 1").body == b"1\n"


@pytest.mark.parametrize(
    ("query", "body", "answer"),
    [
        ({"query": "SELECT 1"}, None, b"1\n"),
        ({"query": "SELECT 1 AS x FORMAT JSONEachRow"}, None, b'{"x":1}\n'),
        ({"query": "SELECT 1 AS x", "default_format": "CSVWithNames"}, None, b'"x"\n1\n'),
        ({"query": "SELECT {x:UInt8} + 1", "param_x": "4"}, None, b"5\n"),
        ({"query": "SELECT currentDatabase()", "database": "system"}, None, b"system\n"),
        ({}, b"SELECT 2", b"2\n"),
        ({}, b"SELECT currentDatabase()", b"otel\n"),
        ({"query": "SELECT "}, b"3", b"3\n"),
        ({"query": "SELECT getSetting('max_block_size')", "max_block_size": "77"}, b"", b"77\n"),
    ],
)
def test_plain_requests(collector: Any, fetch: Any, query: dict[str, str], body: bytes | None, answer: bytes) -> None:
    reply = fetch(f"{collector.clickhouse}/?{urllib.parse.urlencode(query)}", body)
    assert (reply.status, reply.body) == (200, answer)
    assert reply.headers["X-ClickHouse-Timezone"]
    assert json.loads(reply.headers["X-ClickHouse-Summary"]).keys() >= {"read_rows", "elapsed_ns"}


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("INSERT INTO {t} (k, v) FORMAT CSV", b"1,a\n2,b\n"),
        ("INSERT INTO {t} (k, v) VALUES", b"(1,'a'),(2,'b')"),
        ("", b"INSERT INTO {t} (k, v) FORMAT CSV\n1,a\n2,b\n"),
        (
            "",
            b"insert into otel.{t} (`k`, \"v\") settings max_insert_threads = 1, log_comment = 'FORMAT;' "
            b"format CSV 1,a\n2,b\n",
        ),
        ("", b'/* two rows */ INSERT INTO TABLE {t} (k, v) FORMAT JSONEachRow\n{"k":1,"v":"a"}\n{"k":2,"v":"b"}'),
        ("", b"-- two rows\nINSERT INTO `{t}` (k, v) VALUES (1,'a'),(2,'b')"),
        ("", b"INSERT INTO {t} (k, v) SELECT number + 1, char(97 + number) FROM numbers(2)"),
    ],
)
def test_plain_inserts(collector: Any, fetch: Any, table: str, query: str, body: bytes) -> None:
    parameters = urllib.parse.urlencode({"database": "otel", "query": query.replace("{t}", table)})
    reply = fetch(f"{collector.clickhouse}/?{parameters}", body.replace(b"{t}", table.encode()), **collector.writer)
    assert (reply.status, reply.body) == (200, b"")
    assert collector.sql(f"SELECT k, v FROM {table} ORDER BY k") == "1\ta\n2\tb"


def test_compressed_bodies_both_ways(collector: Any, fetch: Any) -> None:
    url = f"{collector.clickhouse}/?enable_http_compression=1"
    for name, shrink, expand in (
        ("gzip", gzip.compress, gzip.decompress),
        ("lz4", lz4.frame.compress, lz4.frame.decompress),
        ("zstd", zstandard.compress, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
    ):
        statement = shrink(b"SELECT number FROM numbers(5000)")
        reply = fetch(url, statement, content_encoding=name, accept_encoding=f"br, {name};q=1")
        assert reply.headers["Content-Encoding"] == name
        assert expand(reply.body).count(b"\n") == 5000
    assert fetch(url, b"x", content_encoding="gzip").headers["X-ClickHouse-Exception-Code"] == "36"
    assert fetch(url, b"x", content_encoding="snappy").status == 400


def test_a_get_changes_nothing(collector: Any, fetch: Any, table: str) -> None:
    for statement in (
        f"DROP TABLE otel.{table}",
        f"INSERT INTO otel.{table} (k) VALUES (1)",
        f"INSERT INTO otel.{table} (k) FORMAT CSV 1",
    ):
        reply = fetch(f"{collector.clickhouse}/?{urllib.parse.urlencode({'query': statement})}", **collector.writer)
        assert reply.headers["X-ClickHouse-Exception-Code"] == "164", statement
    assert collector.sql(f"SELECT count() FROM {table}") == "0"


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SELECT file('/etc/passwd')",
        "SELECT file ('/etc/passwd')",
        "SELECT `file`/**/('/etc/passwd')",
        "SELECT \"\\x66ile\"('/etc/passwd')",
        "SELECT * FROM `/etc/passwd`",
        "SELECT 1 INTO OUTFILE '/tmp/tracegrad-test-outfile'",
        "SELECT 1 INTO/**/ outfile '/tmp/tracegrad-test-outfile'",
        "INSERT INTO otel.policies FROM INFILE '/etc/passwd' FORMAT CSV",
        "INSERT INTO FUNCTION file('/tmp/tracegrad-test-outfile', 'CSV', 'x Int8') VALUES (1)",
        "CREATE TABLE otel.evil (x String) ENGINE = File(CSV, '/etc/passwd')",
        "CREATE TABLE otel.evil (x String) ENGINE = URL('http://127.0.0.1:1/', CSV)",
        "CREATE DICTIONARY d (k UInt64) PRIMARY KEY k SOURCE(FILE(path '/etc/passwd' format 'CSV')) LAYOUT(FLAT())",
        "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
        "SELECT * FROM remote('127.0.0.1:1', system.one)",
        "SELECT * FROM Python(sys)",
        "SET allow_python_table_function = 1",
        "SELECT * FROM filesystem('/etc')",
        "SELECT * FROM sqlite('/tmp/x', 'y')",
        "CREATE FUNCTION f AS (x) -> x",
        "BACKUP DATABASE otel TO File('/tmp/tracegrad-test-outfile')",
        "SYSTEM SHUTDOWN",
        "SELECT arrayMap(file, ['/etc/passwd'])",
        "SELECT * APPLY(file) FROM (SELECT '/etc/passwd' AS path)",
        "SELECT * APPLY \u201cfile\u201d FROM (SELECT '/etc/passwd' AS path)",
        "SELECT 1 AS x FORMAT Template SETTINGS format_template_row = '/etc/passwd'",
        "SELECT 1 AS x FORMAT Protobuf SETTINGS output_format_schema = '/tmp/tracegrad-test-outfile'",
        "SELECT * FROM format(Protobuf, 'x') SETTINGS format_schema = '/etc/passwd:M', format_schema_source = 'file'",
        "SELECT * FROM format(AvroConfluent, 'x') SETTINGS format_avro_schema_registry_url = 'http://127.0.0.1:1'",
        "SELECT * FROM format(CSV, 'x Int8', 'y') SETTINGS input_format_record_errors_file_path = "
        "'/tmp/tracegrad-test-outfile', input_format_allow_errors_num = 1",
    ],
)
@pytest.mark.parametrize("user", ["writer", "default"])
def test_the_machine_is_out_of_reach(collector: Any, fetch: Any, statement: str, user: str) -> None:
    reply = fetch(collector.clickhouse, statement.encode(), **(collector.writer if user == "writer" else {}))
    assert reply.status in {400, 403, 404, 500}, reply.body
    assert b"root:" not in reply.body
    assert not Path("/tmp/tracegrad-test-outfile").exists()  # noqa: S108
    assert collector.process.poll() is None
    assert collector.sql("SELECT count() FROM system.tables WHERE database = 'otel' AND name IN ('evil', 'd')") == "0"


def test_a_client_that_goes_away_takes_its_statement_with_it(collector: Any) -> None:
    host, port = collector.clickhouse.removeprefix("http://").split(":")
    marked = f"SELECT count() FROM numbers(1000000000000) WHERE NOT ignore('{secrets.token_hex(4)}')".encode()
    for _ in range(20):  # more than there are threads
        connection = socket.create_connection((host, int(port)))
        connection.sendall(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(marked), marked)
        )
        time.sleep(0.02)
        connection.close()
    deadline = time.monotonic() + 20
    while collector.sql("SELECT count() FROM system.processes WHERE query LIKE '%1000000000000%'") != "1":  # but this
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_too_many_statements_are_refused_and_the_rest_is_served(collector: Any, fetch: Any) -> None:
    many = THREADS + MAX_WAITING + 10
    with concurrent.futures.ThreadPoolExecutor(many) as threads:
        replies = list(threads.map(lambda _: fetch(collector.clickhouse, b"SELECT sleep(1)"), range(many)))
    statuses = {reply.status for reply in replies}
    assert statuses == {200, 503}
    refused = [reply for reply in replies if reply.status == 503]
    assert {reply.headers["X-ClickHouse-Exception-Code"] for reply in refused} == {"202"}
    assert fetch(collector.clickhouse, b"SELECT 1").status == 200


def test_ping(client: Any, collector: Any, fetch: Any) -> None:
    assert client.ping()
    for path in ("/ping", "/replicas_status", "/"):
        assert (fetch(collector.clickhouse + path).body) == b"Ok.\n"
    assert fetch(f"{collector.clickhouse}/elsewhere").status == 404


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SHOW DATABASES", "otel"),
        ("SHOW TABLES", "policies"),
        ("SHOW COLUMNS FROM policies", "sha256"),
        ("SHOW SETTINGS LIKE 'max_block_size'", "max_block_size"),
        ("SHOW FUNCTIONS LIKE 'plus'", "plus"),
        ("SHOW PROCESSLIST", "default"),
        ("SHOW CREATE TABLE policies", "CREATE TABLE otel.policies"),
        ("DESCRIBE policies", "sha256"),
        ("EXISTS policies", "1"),
        ("EXPLAIN SELECT 1", "Output"),
        ("SELECT 1 UNION ALL SELECT 7", "7"),
        ("WITH 7 AS x SELECT x", "7"),
        ("FROM numbers(3) SELECT max(number)", "2"),
    ],
)
def test_every_statement_that_reads_gives_its_rows(collector: Any, fetch: Any, statement: str, expected: str) -> None:
    for output_format in ("TSV", "JSON", "Native", "Vertical"):
        reply = fetch(f"{collector.clickhouse}/?default_format={output_format}", statement.encode())
        assert (reply.status, expected in reply.body.decode(errors="replace")) == (200, True) or (
            output_format == "Native" and expected.isdecimal()
        ), (output_format, reply.body)
        assert reply.headers["X-ClickHouse-Format"] == output_format


def test_tracegrad_sql(collector: Any) -> None:
    environment = {**os.environ, "TRACEGRAD_CLICKHOUSE": collector.clickhouse}
    command = [sys.executable, "-m", "tracegrad", "sql"]
    asked = [*command, "SELECT name FROM system.tables WHERE database = 'otel' AND name = 'llm_calls'", "--json"]
    done = subprocess.run(asked, env=environment, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == {"name": "llm_calls"}
    asked = [*command, "SELECT * FROM nowhere"]
    failed = subprocess.run(asked, env=environment, capture_output=True, check=False, text=True, timeout=60)
    assert failed.returncode == 1
    assert "UNKNOWN_TABLE" in failed.stderr
