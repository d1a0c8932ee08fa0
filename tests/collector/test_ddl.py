"""Statements of schema files, as they are and for a cluster. chDB has no cluster, but parses what is meant for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.ddl import on_cluster, statements
from collector.engine import Connection, Engine
from collector.migrations import FILES, RECORD, Schema
from collector.retention import Retention
from collector.store import quote

EVERY = Retention({"traces": "30d", "logs": "12h", "metrics": "4w"})


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with Engine(tmp_path_factory.mktemp("ddl") / "store") as engine, engine.connection() as opened:
        yield opened


def parsed(connection: Connection, statement: str) -> str:
    """The statement as the engine understands it. Raises EngineError for one that it cannot parse."""
    asked = f"SELECT formatQuerySingleLine({quote(statement)})"
    return connection.query(asked, "TSVRaw").body.decode().strip()


def test_statements_end_at_semicolons_that_are_none_of_a_text_or_a_comment() -> None:
    text = "-- one; comment\nSELECT ';', `a;b`, \"c;d\", 'it''s;' /* ; */;\n\nSELECT 'a\\';b';\n-- the end;\n"
    assert list(statements(text)) == [
        "-- one; comment\nSELECT ';', `a;b`, \"c;d\", 'it''s;' /* ; */",
        "SELECT 'a\\';b'",
    ]


@pytest.mark.parametrize(
    ("plain", "rendered"),
    [
        ("CREATE DATABASE IF NOT EXISTS otel", "CREATE DATABASE IF NOT EXISTS otel ON CLUSTER 'c'"),
        (
            "-- ENGINE = MergeTree\nCREATE TABLE otel.t (a UInt8) ENGINE = MergeTree ORDER BY a",
            "-- ENGINE = MergeTree\nCREATE TABLE otel.t ON CLUSTER 'c' (a UInt8) ENGINE = ReplicatedMergeTree("
            "'/clickhouse/tables/{shard}/otel/t', '{replica}') ORDER BY a",
        ),
        (
            "CREATE TABLE IF NOT EXISTS otel.t (a UInt8, v UInt8) ENGINE=ReplacingMergeTree(v) ORDER BY a",
            "CREATE TABLE IF NOT EXISTS otel.t ON CLUSTER 'c' (a UInt8, v UInt8) ENGINE = ReplicatedReplacingMergeTree("
            "'/clickhouse/tables/{shard}/otel/t', '{replica}', v) ORDER BY a",
        ),
        (
            "CREATE TABLE otel.t (a UInt8) ENGINE = MergeTree() ORDER BY a COMMENT 'ENGINE = MergeTree'",
            "CREATE TABLE otel.t ON CLUSTER 'c' (a UInt8) ENGINE = ReplicatedMergeTree("
            "'/clickhouse/tables/{shard}/otel/t', '{replica}') ORDER BY a COMMENT 'ENGINE = MergeTree'",
        ),
        ("CREATE TABLE otel.t (a UInt8) ENGINE = Null", "CREATE TABLE otel.t ON CLUSTER 'c' (a UInt8) ENGINE = Null"),
        (
            "CREATE MATERIALIZED VIEW otel.v TO otel.t AS SELECT 1 AS a",
            "CREATE MATERIALIZED VIEW otel.v ON CLUSTER 'c' TO otel.t AS SELECT 1 AS a",
        ),
        ("CREATE OR REPLACE VIEW otel.v AS SELECT 1", "CREATE OR REPLACE VIEW otel.v ON CLUSTER 'c' AS SELECT 1"),
        ("ALTER TABLE otel.t DROP COLUMN a", "ALTER TABLE otel.t ON CLUSTER 'c' DROP COLUMN a"),
        ("DROP TABLE IF EXISTS otel.t", "DROP TABLE IF EXISTS otel.t ON CLUSTER 'c' SYNC"),
        ("DROP VIEW IF EXISTS otel.v", "DROP VIEW IF EXISTS otel.v ON CLUSTER 'c'"),
        ("RENAME TABLE otel.t TO otel.u", "RENAME TABLE otel.t TO otel.u ON CLUSTER 'c'"),
        ("INSERT INTO otel.t SELECT a FROM otel.u", "INSERT INTO otel.t SELECT a FROM otel.u"),
    ],
)
def test_what_each_kind_of_statement_becomes(connection: Connection, plain: str, rendered: str) -> None:
    assert on_cluster(plain, "c") == rendered
    assert parsed(connection, rendered)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE OR REPLACE TABLE otel.t (a UInt8) ENGINE = MergeTree ORDER BY a", "DROP it first"),
        ("CREATE MATERIALIZED VIEW otel.v ENGINE = MergeTree ORDER BY a AS SELECT 1 AS a", "has no TO"),
        ("CREATE TABLE otel.t AS otel.u", "0 ENGINE clauses"),
        ("SYSTEM FLUSH LOGS", "not known for clusters"),
    ],
)
def test_what_cannot_be_replicated_is_refused(statement: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        on_cluster(statement, "c")


@pytest.mark.parametrize("file", sorted(FILES.glob("*.sql")), ids=lambda file: file.stem)
def test_every_statement_of_the_schema_is_for_all_servers_of_a_cluster(connection: Connection, file: Path) -> None:
    plain = list(Schema(files=FILES).rendered(file.read_text()))
    rendered = list(Schema(cluster="main").rendered(file.read_text()))
    assert len(plain) == len(rendered) > 0
    for before, after in zip(plain, rendered, strict=True):
        understood = parsed(connection, after)
        assert understood.count(" ON CLUSTER main") == (0 if understood.startswith("INSERT") else 1)
        # Nothing else has changed.
        back = understood.replace(" ON CLUSTER main", "").replace(" SYNC", "")
        if "MergeTree" in parsed(connection, before) and understood.startswith("CREATE TABLE"):
            table = understood.split()[understood.split().index("ON") - 1]
            path = f"'/clickhouse/tables/{{shard}}/{table.replace('.', '/')}', '{{replica}}'"
            assert f"MergeTree({path}" in back
            assert "ENGINE = Replicated" in back
            back = back.replace("ENGINE = Replicated", "ENGINE = ").replace(f"({path})", "").replace(f"{path}, ", "")
        assert back == parsed(connection, before)


def test_the_printed_schema_of_a_cluster_parses_and_begins_with_the_record(connection: Connection) -> None:
    printed = list(statements(Schema(cluster="{cluster}", retention=EVERY).text()))
    assert printed[: len(list(statements(RECORD)))] == list(Schema(cluster="{cluster}").rendered(RECORD))
    understood = [parsed(connection, statement) for statement in printed]
    assert sum("MODIFY TTL" in statement for statement in understood) == 8
