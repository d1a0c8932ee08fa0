"""The engine's directory and the schema in it, without a server in front."""

from pathlib import Path

import pytest

from collector.engine import Engine, EngineError
from collector.migrations import Schema, apply
from tracegrad.errors import TracegradError


def test_the_schema_is_applied_once_and_a_newer_store_is_left_alone(tmp_path: Path) -> None:
    with Engine(tmp_path / "store") as engine:
        with engine.connection() as connection:
            newest = apply(connection, Schema())
            assert apply(connection, Schema()) == newest
            assert connection.query("SELECT max(number) FROM otel.schema_migrations").body == b"%d\n" % newest
            assert connection.query("SELECT count() = uniq(number) FROM otel.schema_migrations").body == b"1\n"
            connection.query("INSERT INTO otel.schema_migrations (number, name) VALUES (9999, 'future')")
            with pytest.raises(TracegradError, match="upgrade tracegrad"):
                apply(connection, Schema())
        with pytest.raises(TracegradError, match="open in another collector"):
            Engine(tmp_path / "store")


def test_a_migration_that_fails_is_not_recorded(tmp_path: Path) -> None:
    files = tmp_path / "schema"
    files.mkdir()
    (files / "0001_one.sql").write_text(
        "CREATE TABLE IF NOT EXISTS otel.one (x UInt8) ENGINE = Memory;\nSELECT nonsense;\n"
    )
    with Engine(tmp_path / "store") as engine, engine.connection() as connection:
        with pytest.raises(EngineError, match="nonsense"):
            apply(connection, Schema(files=files))
        assert connection.query("SELECT count() FROM otel.schema_migrations").body == b"0\n"
        (files / "0001_one.sql").write_text("CREATE TABLE IF NOT EXISTS otel.one (x UInt8) ENGINE = Memory;\n")
        assert apply(connection, Schema(files=files)) == 1


@pytest.mark.parametrize("name", ["what?", "a&b", "100%"])
def test_paths_that_chdb_would_misread_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TracegradError, match="cannot keep a store in"):
        Engine(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_the_path_of_the_store_may_hold_spaces_and_quotes(tmp_path: Path) -> None:
    with Engine(tmp_path / "with space and 'quote'") as engine, engine.connection() as connection:
        assert connection.query("SELECT 1").body == b"1\n"


TRACES = """
INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, ParentSpanId, TraceState, SpanName, SpanKind, ServiceName,
    ResourceAttributes, ScopeName, ScopeVersion, SpanAttributes, Duration, StatusCode, StatusMessage, Events.Timestamp,
    Events.Name, Events.Attributes, Links.TraceId, Links.SpanId, Links.TraceState, Links.Attributes)
VALUES (now64(9), 't', 's', '', '', 'chat', 'Server', 'svc', {}, '', '',
    {'tracegrad.trainable': 'true', 'tracegrad.rollout.id': 'r', 'tracegrad.response.token_ids': '[5,6]'}, 7, 'Ok', '',
    [now64(9)], ['e'], [{'a': 'b'}], ['l'], ['m'], [''], [{}])
"""
LOGS = """
INSERT INTO otel.otel_logs (Timestamp, TraceId, SpanId, TraceFlags, SeverityText, SeverityNumber, ServiceName, Body,
    ResourceSchemaUrl, ResourceAttributes, ScopeSchemaUrl, ScopeName, ScopeVersion, ScopeAttributes, LogAttributes,
    EventName)
VALUES (now64(9), 't', 's', 1, 'INFO', 9, 'svc', 'body', '', {}, '', '', '', {},
    {'gen_ai.evaluation.name': 'n', 'gen_ai.evaluation.score.value': '0.5', 'tracegrad.rollout.id': 'r'},
    'gen_ai.evaluation.result')
"""


def test_the_official_exporter_can_insert_as_it_is(tmp_path: Path) -> None:
    """With the columns that the OpenTelemetry Collector's ClickHouse exporter names in its INSERTs, and no others."""
    with Engine(tmp_path / "store") as engine, engine.connection() as connection:
        apply(connection, Schema())
        connection.query(TRACES)
        connection.query(LOGS)
        asked = "SELECT r.reward, c.response_token_ids FROM otel.rollouts r JOIN otel.llm_calls c USING rollout_id"
        assert connection.query(asked).body == b"0.5\t[5,6]\n"
        lookup = "SELECT TraceId, End >= Start FROM otel.otel_traces_trace_id_ts"
        assert connection.query(lookup).body == b"t\t1\n"


def test_what_a_failed_statement_had_answered_does_not_begin_the_next_answer(tmp_path: Path) -> None:
    with Engine(tmp_path / "store") as engine, engine.connection() as connection:
        with pytest.raises(EngineError, match="Code: 395"):
            connection.query("SELECT number, throwIf(number = 1000000) FROM numbers(2000000)")
        assert connection.query("SELECT 1").body == b"1\n"
