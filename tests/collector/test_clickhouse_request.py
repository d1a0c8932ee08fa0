"""Taking requests of ClickHouse's HTTP interface apart."""

import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.clickhouse_body import Body
from collector.clickhouse_request import External, SqlRequest, external, parse
from collector.engine import EngineError

SOMEWHERE = Path(tempfile.gettempdir())


def of(body: bytes, headers: dict[str, str] | None = None, **parameters: str) -> SqlRequest:
    return parse(parameters, headers or {}, Body(SOMEWHERE, body))


def data_of(request: SqlRequest, body: bytes) -> bytes:
    """What the engine would be given of an insert's data."""
    assert request.insert is not None
    return request.insert.inline + body[request.insert.data_start :]


@given(st.binary())
def test_data_of_an_insert_is_taken_byte_for_byte(data: bytes) -> None:
    inside = b"INSERT INTO t (a, b) FORMAT Native\n" + data
    for request, body in ((of(inside), inside), (of(data, query="INSERT INTO t (a, b) FORMAT Native"), data)):
        assert request.insert is not None
        assert (request.insert.into, request.insert.input_format) == ("INSERT INTO t (a, b) ", "Native")
        assert data_of(request, body) == data


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
    request = of(statement.encode())
    assert request.insert is not None
    assert (request.insert.into, request.insert.settings, request.insert.input_format) == (into, settings, "CSV")
    assert data_of(request, statement.encode()) == b"1"


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
    assert (request.insert, request.statement.sql) == (None, statement.encode())


def test_many_values_are_data() -> None:
    statement = b"INSERT INTO t (a) VALUES" + b" (1)," * 300_000
    request = of(statement)
    assert request.insert is not None
    assert request.insert.input_format == "Values"
    assert data_of(request, statement) == b" (1)," * 300_000


def test_a_statement_is_not_endless() -> None:
    with pytest.raises(EngineError, match="Max query size exceeded"):
        of(b"SELECT " + b"1," * 600_000)


def test_an_insert_whose_data_would_be_lost_is_refused() -> None:
    with pytest.raises(EngineError, match="not known here"):
        of(b"INSERT INTO FUNCTION null('a Int8') FORMAT CSV 1")


@pytest.mark.parametrize("part", ["INSERT INTO file('/etc/passwd') FORMAT CSV", "INSERT INTO t (file) FORMAT CSV"])
def test_an_insert_names_no_files(part: str) -> None:
    with pytest.raises(EngineError, match="out of reach"):
        of(b"1", query=part)


def test_the_format_is_that_of_the_statement_then_that_of_the_request() -> None:
    assert of(b"SELECT 1 FORMAT JSON").output_format == "JSON"
    assert of(b"SELECT 1 format Native settings max_threads = 1 ;\n").output_format == "Native"
    assert of(b"SELECT 1", default_format="CSV").output_format == "CSV"
    assert of(b"SELECT 1", {"X-ClickHouse-Format": "TSKV"}).output_format == "TSKV"
    assert of(b"SELECT 'in FORMAT JSON' AS x").output_format == "TabSeparated"


def test_names_of_settings_and_formats_are_names() -> None:
    with pytest.raises(EngineError, match="not the name of a setting"):
        parse({"a = 1, b": "2"}, {}, Body(SOMEWHERE, b"SELECT 1"))
    with pytest.raises(EngineError, match="not the name of a format"):
        of(b"SELECT 1", default_format="CSV SETTINGS readonly = 0")


def test_external_tables() -> None:
    parameters = {"t_structure": "a Int8, b Array(String)", "t_format": "CSV", "u_types": "Int8,Map(String, Int8)"}
    assert external("t", parameters) == External("t", "a Int8, b Array(String)", "CSV")
    assert external("u", parameters) == External("u", "_1 Int8, _2 Map(String, Int8)", "TabSeparated")
    assert parameters == {}, "they are no settings"


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "give its columns"),
        ({"t_structure": "a Int8) ENGINE = Memory AS (SELECT 1"}, "not a list of columns"),
        ({"t_structure": "a Int8; DROP TABLE x"}, "not a list of columns"),
        ({"t_structure": "a String DEFAULT file('/etc/passwd')"}, "out of reach"),
        ({"t_structure": "a Int8", "t_format": "CSV SETTINGS x = 1"}, "is not a name"),
    ],
)
def test_external_tables_that_are_none(parameters: dict[str, str], reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        external("t", parameters)


@pytest.mark.parametrize("name", ["buffer_size", "session_timeout", "client_protocol_version"])
def test_numbers_are_numbers(name: str) -> None:
    with pytest.raises(EngineError, match=f"{name} is '-1', not a whole number"):
        of(b"SELECT 1", **{name: "-1"})


@pytest.mark.parametrize(
    "statement", [b"/**/" * 5000, b"-- x\n" * 5000, b"INSERT INTO t (" * 2000, b" " * 50_000 + b"("]
)
def test_odd_statements_are_taken_apart_at_once(statement: bytes) -> None:
    started = time.monotonic()
    request = of(statement)
    assert (request.insert, request.reads) == (None, False)
    assert time.monotonic() - started < 5, "not in a time that grows with the square"
