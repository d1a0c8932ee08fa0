"""Who may do what over ClickHouse HTTP: everybody reads, the writer writes, nobody gets further than that."""

import base64
import secrets
import stat
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.clickhouse_users import Users, writer_password
from collector.engine import EngineError
from tracegrad.secret import Secret
from tracegrad.settings import Settings, load
from tracegrad.store_writer import PASSWORD_FILE, kept_password


@pytest.fixture
def table(collector: Any) -> Iterator[str]:
    """A table (k UInt32) of the test's own, with the rows 1 and 2."""
    name = f"t_{secrets.token_hex(4)}"
    collector.sql(f"CREATE TABLE {name} (k UInt32) ENGINE = MergeTree ORDER BY k")
    collector.sql(f"INSERT INTO {name} VALUES (1), (2)")
    yield name
    collector.sql(f"DROP TABLE {name}")


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def test_the_writer_in_every_way_that_clients_name_it(collector: Any, fetch: Any) -> None:
    password = collector.writer["X-ClickHouse-Key"]
    parameters = urllib.parse.urlencode({"user": "writer", "password": password})
    for url, headers in (
        ("", collector.writer),
        ("", basic("writer", password)),
        (f"?{parameters}", {}),
    ):
        reply = fetch(f"{collector.clickhouse}/{url}", b"CREATE TABLE IF NOT EXISTS otel.policies (a Int8)", **headers)
        assert (reply.status, reply.body) == (200, b"")


def test_who_is_not_known_is_refused_as_clickhouse_does(collector: Any, fetch: Any) -> None:
    password = collector.writer["X-ClickHouse-Key"]
    for url, headers in (
        ("", {"X-ClickHouse-User": "writer"}),
        ("", {"X-ClickHouse-User": "writer", "X-ClickHouse-Key": password + "x"}),
        ("", {"X-ClickHouse-User": "nobody"}),
        ("", {"X-ClickHouse-User": "default", "X-ClickHouse-Key": password}),
        ("", basic("writer", "")),
        ("", {"Authorization": "Basic !"}),
        ("", {"Authorization": "Bearer abc"}),
        ("?user=writer&password=wrong", {}),
        ("?user=writer", collector.writer),  # in two ways at once
        ("", collector.writer | basic("writer", password)),
    ):
        for method in ("GET", "POST"):
            target = f"{collector.clickhouse}/{url}{'&' if url else '?'}query=SELECT+1"
            reply = fetch(target, b"" if method == "POST" else None, method=method, **headers)
            assert (reply.status, reply.headers["X-ClickHouse-Exception-Code"]) == (403, "516"), headers
            assert password.encode() not in reply.body
    assert password not in collector.log.read_text()


def test_everybody_reads(collector: Any, fetch: Any, table: str) -> None:
    for headers in ({}, basic("default", ""), {"X-ClickHouse-User": "default", "X-ClickHouse-Key": ""}):
        assert (
            fetch(f"{collector.clickhouse}/?database=otel", f"SELECT sum(k) FROM {table}".encode(), **headers).body
            == b"3\n"
        )
    client = collector.client(username="default", password="")
    assert client.query(f"SELECT k FROM {table} ORDER BY k").result_rows == [(1,), (2,)]
    with pytest.raises(DatabaseError, match=r"READONLY.*name the user writer"):
        client.insert(table, [[3]], column_names=["k"])
    client.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {t} VALUES (3)",
        "INSERT INTO {t} FORMAT CSV 3",
        "INSERT INTO {t} SELECT 3",
        "CREATE TABLE other (k Int8) ENGINE = Memory",
        "CREATE VIEW other AS SELECT 1",
        "CREATE DATABASE other",
        "DROP TABLE {t}",
        "TRUNCATE TABLE {t}",
        "RENAME TABLE {t} TO other",
        "ALTER TABLE {t} DELETE WHERE 1",
        "ALTER TABLE {t} ADD COLUMN x Int8",
        "ALTER TABLE {t} UPDATE k = 3 WHERE 1",
        "DELETE FROM {t} WHERE 1",
        "UPDATE {t} SET k = 3 WHERE 1",
        "OPTIMIZE TABLE {t} FINAL",
        "DETACH TABLE {t}",
        "SYSTEM STOP MERGES {t}",
        "SYSTEM DROP MARK CACHE",
        "SYSTEM FLUSH LOGS",
        "KILL MUTATION WHERE 1",
        "SET readonly = 0",
        "SET readonly = DEFAULT",
        "SELECT 1 SETTINGS readonly = 0",
        "SELECT 1 FORMAT CSV SETTINGS readonly = 0",
        "SET max_execution_time = 0",
        "SELECT 1 SETTINGS max_execution_time = 0",
        "SET max_memory_usage = 0",
        "SELECT 1 SETTINGS max_memory_usage = 1000000000000",
        "GRANT ALL ON *.* TO default",
        "CREATE USER someone",
        "SELECT * FROM system.users",
        "EXECUTE AS default",
    ],
)
def test_who_only_reads_cannot_leave_that(collector: Any, fetch: Any, table: str, statement: str) -> None:
    session = secrets.token_hex(4)
    url = f"{collector.clickhouse}/?database=otel&session_id={session}"
    for first in ("SELECT 1", "SET profile = 'default'", "SET profile = 'writer'", "SET profile = 'sql'"):
        fetch(url, first.encode())  # allowed or not: it must not help
        reply = fetch(url, statement.format(t=table).encode())
        assert reply.headers.get("X-ClickHouse-Exception-Code") in {"164", "344", "452", "497"}, reply.body
        for setting in ("readonly=0", "profile=default", "profile=writer&readonly=0", "max_execution_time=0"):
            reply = fetch(f"{collector.clickhouse}/?database=otel&{setting}", statement.format(t=table).encode())
            assert reply.headers.get("X-ClickHouse-Exception-Code") in {"164", "344", "452", "497"}, reply.body
    assert collector.sql(f"SELECT groupArray(k) FROM (SELECT k FROM {table} ORDER BY k)") == "[1,2]"


def test_what_a_reader_asks_for_is_bounded(collector: Any) -> None:
    client = collector.client(username="default", password="")
    with pytest.raises(DatabaseError, match="TIMEOUT_EXCEEDED"):
        client.query("SELECT count() FROM numbers(1000000000000)", settings={"max_execution_time": 1})
    with pytest.raises(DatabaseError, match="MEMORY_LIMIT_EXCEEDED"):
        client.query("SELECT length(groupArray(number)) FROM numbers(100000000)")
    assert client.query("SELECT getSetting('max_execution_time')").first_row == (600,)
    client.close()


def test_a_reader_has_sessions_with_tables_of_its_own(collector: Any) -> None:
    client = collector.client(username="default", password="", session_id=secrets.token_hex(4))
    client.command("CREATE TEMPORARY TABLE mine (x UInt8)")
    client.insert("mine", [[7]], column_names=["x"])
    assert client.command("SELECT x FROM mine") == 7
    client.close()


def test_a_session_is_of_one_user(collector: Any, fetch: Any, table: str) -> None:
    session = secrets.token_hex(4)
    url = f"{collector.clickhouse}/?database=otel&session_id={session}"
    assert fetch(url, f"INSERT INTO {table} VALUES (3)".encode(), **collector.writer).status == 200
    reply = fetch(url, f"INSERT INTO {table} VALUES (4)".encode())
    assert reply.headers["X-ClickHouse-Exception-Code"] == "164"


def test_the_password_is_made_once_and_for_its_user_alone(tmp_path: Path) -> None:
    made = writer_password(None, tmp_path)
    file = tmp_path / PASSWORD_FILE
    assert len(made) >= 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (writer_password(None, tmp_path), kept_password(tmp_path)) == (made, made)
    assert [path.name for path in tmp_path.iterdir()] == [PASSWORD_FILE]
    configured = Secret("x", None, "THE_PASSWORD", None)
    assert configured.read({"THE_PASSWORD": "secret"}) == "secret"


def test_a_collector_with_a_configured_password(start: Any, fetch: Any, tmp_path: Path) -> None:
    config = tmp_path / "tracegrad.toml"
    (tmp_path / "password").write_text("kept elsewhere\n")
    config.write_text(f'[collector]\nwriter_password_file = "{tmp_path / "password"}"\n')
    with start(tmp_path / "store", "--config", str(config)) as collector:
        assert not (tmp_path / "store" / PASSWORD_FILE).exists()
        headers = {"X-ClickHouse-User": "writer", "X-ClickHouse-Key": "kept elsewhere"}
        assert fetch(collector.clickhouse, b"CREATE TABLE otel.x (a Int8) ENGINE = Memory", **headers).status == 200


def test_own_processes_find_the_password_on_this_machine_only(tmp_path: Path) -> None:
    data = tmp_path / "store"
    chosen = Settings().with_values("collector", data=data, clickhouse_port=18123)
    assert chosen.clickhouse_to_write == "http://127.0.0.1:18123", "no collector has been here"
    data.mkdir()
    (data / PASSWORD_FILE).write_text("p/w\n")
    assert chosen.clickhouse_to_write == "http://writer:p%2Fw@127.0.0.1:18123"
    assert chosen.clickhouse == "http://127.0.0.1:18123"
    elsewhere = chosen.with_address("clickhouse", "http://store.example:8123")
    assert elsewhere.clickhouse_to_write == "http://store.example:8123"
    named = chosen.with_address("clickhouse", "http://me:pw@127.0.0.1:8123")
    assert named.clickhouse_to_write == "http://me:pw@127.0.0.1:8123"
    given = elsewhere.with_values("collector", writer_password="there")
    assert given.clickhouse_to_write == "http://writer:there@store.example:8123"
    server = chosen.with_values("collector", store="clickhouse://127.0.0.1:9")
    assert server.clickhouse_to_write == "http://127.0.0.1:9", "a server has users of its own"
    assert load(environ={"TRACEGRAD_COLLECTOR_WRITER_PASSWORD": "x"}).collector.writer_secret is not None


def test_passwords_are_compared_whole() -> None:
    users = Users("secret")
    assert users.authenticate({"X-ClickHouse-User": "writer", "X-ClickHouse-Key": "secret"}, {}).writes
    assert not users.authenticate({}, {}).writes
    for password in ("", "secre", "secret ", "s\u00e9cret"):
        with pytest.raises(EngineError) as refused:
            users.authenticate({"X-ClickHouse-User": "writer", "X-ClickHouse-Key": password}, {})
        assert refused.value.code == 516
