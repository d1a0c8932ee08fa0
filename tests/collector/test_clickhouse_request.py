"""Taking requests of ClickHouse's HTTP interface apart."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.clickhouse_request import Insert, SqlRequest, parse
from collector.engine import EngineError


def of(body: bytes, **parameters: str) -> SqlRequest:
    return parse(parameters, {}, body)


@given(st.binary())
def test_data_of_an_insert_is_taken_byte_for_byte(data: bytes) -> None:
    expected = Insert("INSERT INTO t (a, b) ", "", "Native", data)
    assert of(b"INSERT INTO t (a, b) FORMAT Native\n" + data).insert == expected
    assert of(data, query="INSERT INTO t (a, b) FORMAT Native").insert == expected


@pytest.mark.parametrize(
    ("statement", "into", "settings"),
    [
        ("INSERT INTO t FORMAT CSV 1", "INSERT INTO t ", ""),
        ('insert into `a b`."c" format CSV 1', 'insert into `a b`."c" ', ""),
        ("/* x */ -- y\n INSERT INTO t (`a)`, f(b)) FORMAT CSV 1", "/* x */ -- y\n INSERT INTO t (`a)`, f(b)) ", ""),
        (
            "INSERT INTO t SETTINGS a = ' FORMAT x;', b = 1 FORMAT CSV 1",
            "INSERT INTO t ",
            "SETTINGS a = ' FORMAT x;', b = 1 ",
        ),
    ],
)
def test_heads_of_inserts(statement: str, into: str, settings: str) -> None:
    assert of(statement.encode()).insert == Insert(into, settings, "CSV", b"1")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t SELECT 1 FORMAT Null",
        "SELECT 'INSERT INTO t FORMAT CSV'",
        "INSERT INTO t",
    ],
)
def test_other_statements_carry_no_data(statement: str) -> None:
    request = of(statement.encode())
    assert (request.insert, request.sql) == (None, statement.encode())


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("SELECT 1", True),
        (" ( select 1)", True),
        ("-- why\nWITH 1 AS x SELECT x", True),
        ("/* a */ SHOW TABLES", True),
        ("SELECTED", False),
        ("DROP TABLE t", False),
        ("/* SELECT */ DROP TABLE t", False),
        ("INSERT INTO t SELECT 1", False),
    ],
)
def test_what_reads(statement: str, reads: bool) -> None:
    assert of(statement.encode()).reads is reads


def test_the_format_is_that_of_the_statement_then_that_of_the_request() -> None:
    assert of(b"SELECT 1 FORMAT JSON").output_format == "JSON"
    assert of(b"SELECT 1 format Native settings max_threads = 1 ;\n").output_format == "Native"
    assert of(b"SELECT 1", default_format="CSV").output_format == "CSV"
    assert parse({}, {"X-ClickHouse-Format": "TSKV"}, b"SELECT 1").output_format == "TSKV"
    assert of(b"SELECT 'in FORMAT JSON' AS x").output_format == "TabSeparated"


def test_a_form_holds_the_statement_and_its_parameters() -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="query"\r\n\r\nSELECT {a:String}\r\n'
        b'--x\r\nContent-Disposition: form-data; name="param_a"\r\n\r\n1\\t2\r\n--x--\r\n'
    )
    request = parse({"max_threads": "1"}, {"Content-Type": "multipart/form-data; boundary=x"}, body)
    assert (request.sql, request.params, request.settings) == (
        b"SELECT {a:String}",
        {"a": "1\\t2"},
        {"max_threads": "1"},
    )


def test_names_of_settings_are_names() -> None:
    with pytest.raises(EngineError, match="not the name of a setting"):
        parse({"a = 1, b": "2"}, {}, b"SELECT 1")


@pytest.mark.parametrize(
    "statement", [b"/**/" * 5000, b"-- x\n" * 5000, b"INSERT INTO t (" * 2000, b" " * 50_000 + b"("]
)
def test_odd_statements_are_taken_apart_at_once(statement: bytes) -> None:
    started = time.monotonic()
    assert of(statement).insert is None
    assert not of(statement).reads
    assert time.monotonic() - started < 2
