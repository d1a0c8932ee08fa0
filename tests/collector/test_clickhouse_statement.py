"""What the interface understands of a statement."""

import time

import pytest

from collector.clickhouse_statement import is_list_of_columns, read_statement, renamed
from collector.engine import EngineError


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("SELECT 1", True),
        (" ( select 1)", True),
        ("-- why\nWITH 1 AS x SELECT x", True),
        ("FROM t SELECT a", True),
        ("/* a */ SHOW TABLES", True),
        ("SELECTED", False),
        ("DROP TABLE t", False),
        ("/* SELECT */ DROP TABLE t", False),
        ("INSERT INTO t SELECT 1", False),
        ("WITH 1 AS x INSERT INTO t SELECT x", False),
        ("WITH 'INSERT INTO t' AS x SELECT x", True),
    ],
)
def test_what_reads(statement: str, reads: bool) -> None:
    assert read_statement(statement.encode()).reads is reads


@pytest.mark.parametrize(
    ("statement", "into"),
    [
        ("SELECT 1", "SELECT 1\nINTO OUTFILE '/x' APPEND FORMAT TSV "),
        ("SELECT 1;", "SELECT 1\nINTO OUTFILE '/x' APPEND FORMAT TSV "),
        ("SELECT 1 FORMAT JSON", "SELECT 1 \nINTO OUTFILE '/x' APPEND FORMAT JSON "),
        ("SELECT 1 /* ; */ format /* c */ CSV ;", "SELECT 1 /* ; */ \nINTO OUTFILE '/x' APPEND FORMAT CSV "),
        (
            "SELECT 1 FORMAT CSV SETTINGS a = ';'",
            "SELECT 1 \nINTO OUTFILE '/x' APPEND FORMAT CSV SETTINGS a = ';'",
        ),
        ("SELECT 1 SETTINGS a = 1", "SELECT 1 SETTINGS a = 1\nINTO OUTFILE '/x' APPEND FORMAT TSV "),
        ("SELECT 1 -- FORMAT CSV", "SELECT 1 -- FORMAT CSV\nINTO OUTFILE '/x' APPEND FORMAT TSV "),
        ("SELECT a format FROM t", "SELECT a format FROM t\nINTO OUTFILE '/x' APPEND FORMAT TSV "),
        ("SELECT ' FORMAT CSV'", "SELECT ' FORMAT CSV'\nINTO OUTFILE '/x' APPEND FORMAT TSV "),
    ],
)
def test_where_the_result_goes(statement: str, into: str) -> None:
    assert read_statement(statement.encode()).into("/x", "TSV") == into.encode()


@pytest.mark.parametrize("statement", ["SELECT 1; SELECT 2", "SELECT 1;; DROP TABLE t", "SELECT ';'; x"])
def test_one_statement_at_a_time(statement: str) -> None:
    with pytest.raises(EngineError, match="Multi-statements are not allowed"):
        read_statement(statement.encode())


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT file('x')",
        "SELECT FILE/**/('x')",
        "SELECT `file`('x')",
        'SELECT "fi\\x6ce"(x)',
        "SELECT `f\\ile`('x')",
        "SELECT \u201cfile\u201d('x')",
        "SELECT arrayMap(file, x)",
        "SELECT * APPLY file FROM t",
        "SELECT 1 INTO OUTFILE 'x'",
        "INSERT INTO t FROM INFILE 'x'",
        "SELECT $a$ $a$, file, '$a$'",
        "SELECT '\\\\', file('x'), '\\\\'",
        "SELECT '\\'', file('x'), ''",
        "SELECT 'a''b', file('x')",
        "SELECT $a$x$b$, file('x'), 'y'",
        "SELECT 1 #file('x')",
    ],
)
def test_files_are_out_of_reach(statement: str) -> None:
    with pytest.raises(EngineError, match="out of reach"):
        read_statement(statement.encode())


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("SELECT 1 INTO OUTFILE 'x'", "keep what a SELECT answers"),
        ("INSERT INTO t FROM INFILE 'x'", "send data as the body"),
        ("BACKUP DATABASE otel TO File('x')", "out of reach here: send data"),
        ("SELECT file FROM t", "where `file` is a column's name"),
    ],
)
def test_what_to_do_instead_of_naming_a_file(statement: str, advice: str) -> None:
    with pytest.raises(EngineError, match=advice):
        read_statement(statement.encode())


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'file(x)', $a$ file $a$, \u2018file\u2019",
        "SELECT t.file, 1 AS file FROM t",
        "SELECT 1 /* file(x) */ -- file\n# file\n",
        "SELECT filesystem, profile, file_name FROM t",
    ],
)
def test_what_only_looks_like_a_file(statement: str) -> None:
    assert read_statement(statement.encode()).reads


def test_columns_stay_between_their_brackets() -> None:
    assert is_list_of_columns(b"a Int8, b Map(String, Array(Int8))")
    assert not is_list_of_columns(b"a Int8) ENGINE = Memory AS (SELECT 1")
    assert not is_list_of_columns(b"")


def test_an_identifier_in_place_of_another() -> None:
    sql = b"query_id = 'query_id' OR `query_id` IN (1) -- query_id"
    assert renamed(sql, "query_id", b"X") == b"X = 'query_id' OR X IN (1) -- query_id"


@pytest.mark.parametrize("part", [b"'", b"/*", b"$a$", b"\xe2\x80\x98", b"(", b"`", b'"', b"#", b"--"])
def test_what_is_never_closed_is_looked_for_once(part: bytes) -> None:
    started = time.monotonic()
    read_statement(part * 20_000)
    read_statement(b"".join(part + b"%d" % number for number in range(20_000)))
    read_statement(b"".join(b"$a%d$ " % number for number in range(5_000)))
    assert time.monotonic() - started < 10, "not in a time that grows with the square"
