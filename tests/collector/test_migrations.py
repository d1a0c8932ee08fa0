"""The schema: printed or applied, once, by one of several collectors at a time, and how long its tables keep rows."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clickhouse_between import as_store

from collector import schema_lock
from collector.clickhouse_store import ClickHouseStore
from collector.ddl import statements
from collector.engine import Connection, Engine
from collector.migrations import FILES, Schema, apply, require
from collector.retention import TABLES, Retention
from collector.schema_lock import SchemaLock
from collector.store import StoreError
from tracegrad.errors import TracegradError
from tracegrad.store_address import store_address

FOR_GOOD = {"policies", "train_steps", "train_samples", "schema_migrations", "view_settings"}
EVERY = Retention({"traces": "30d", "logs": "12h", "metrics": "4w"})
TABLES_OF_OTEL = "SELECT name, create_table_query FROM system.tables WHERE database = 'otel' ORDER BY name"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with Engine(tmp_path / "store") as engine, engine.connection() as opened:
        yield opened


def test_the_printed_schema_makes_what_the_collector_makes(tmp_path: Path) -> None:
    schema = Schema(retention=EVERY)
    with Engine(tmp_path / "by_hand") as engine, engine.connection() as opened:
        with pytest.raises(TracegradError, match="--print-schema"):
            require(opened, schema)
        for _ in range(2):  # every statement can run twice
            for statement in statements(schema.text()):
                opened.query(statement)
        assert require(opened, schema) == apply(opened, schema)
        assert EVERY.changes(opened) == []
        by_hand = opened.query(TABLES_OF_OTEL).body
    with Engine(tmp_path / "by_itself") as engine, engine.connection() as opened:
        apply(opened, schema)
        assert opened.query(TABLES_OF_OTEL).body == by_hand


def test_files_that_are_shipped_no_more_are_no_sign_of_a_newer_store(connection: Connection, tmp_path: Path) -> None:
    files = tmp_path / "schema"
    files.mkdir()
    for number in (1, 2, 4):
        (files / f"{number:04}_x.sql").write_text(f"CREATE TABLE IF NOT EXISTS otel.x{number} (a UInt8) ENGINE = Null;")
    assert apply(connection, Schema(files=files)) == 4
    (files / "0002_x.sql").unlink()
    assert apply(connection, Schema(files=files)) == 4
    (files / "0005_x.sql").write_text("DROP TABLE IF EXISTS otel.x2;")
    assert apply(connection, Schema(files=files)) == 5
    (files / "0005_x.sql").unlink()
    with pytest.raises(TracegradError, match="has schema 5, this tracegrad knows up to 4"):
        apply(connection, Schema(files=files))


def test_an_older_store_gets_the_views_of_today(tmp_path: Path) -> None:
    """Views that were there before are made again."""
    older = tmp_path / "schema"
    older.mkdir()
    for number, file in Schema().shipped().items():
        if number < 25:
            shutil.copy(file, older)
    (older / "0017_transitions.sql").write_text(
        "CREATE OR REPLACE VIEW otel.measured_attempts AS SELECT RolloutId AS rollout_id FROM otel.otel_traces;"
        "CREATE OR REPLACE VIEW otel.transitions AS SELECT rollout_id FROM otel.measured_attempts;"
    )
    with Engine(tmp_path / "older") as engine, engine.connection() as opened:
        apply(opened, Schema(files=older))
        apply(opened, Schema())
        upgraded = opened.query(TABLES_OF_OTEL).body
    with Engine(tmp_path / "new") as engine, engine.connection() as opened:
        apply(opened, Schema())
        assert opened.query(TABLES_OF_OTEL).body == upgraded


def test_rows_from_before_have_an_end_that_can_be(connection: Connection, tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    for number, file in Schema().shipped().items():
        if number < 21:
            shutil.copy(file, before)
    assert apply(connection, Schema(files=before)) < 21
    attributes = "map('tracegrad.rollout.id', 'r', 'tracegrad.trainable', 'true')"
    insert = "INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, Duration, SpanAttributes) SELECT"
    connection.query(f"{insert} toDateTime64('2200-01-01', 9), 't', 's', 18446744073709551615, {attributes}")
    apply(connection, Schema())
    for view in ("llm_calls", "rollout_tree"):
        told = connection.query(f"SELECT ended_at FROM otel.{view} WHERE rollout_id = 'r'", "TSV").body.decode()
        assert told == "2262-04-11 23:47:16.854775807\n"


def test_every_table_that_keeps_rows_has_a_time_or_is_kept_for_good(connection: Connection) -> None:
    apply(connection, Schema())
    asked = "SELECT name FROM system.tables WHERE database = 'otel' AND engine LIKE '%MergeTree'"
    assert set(connection.query(asked).body.decode().split()) == TABLES.keys() | FOR_GOOD


def test_a_ttl_is_given_changed_and_taken_away(connection: Connection) -> None:
    with_ttl = "SELECT name, engine_full FROM system.tables WHERE database = 'otel' AND engine_full LIKE '% TTL %'"
    apply(connection, Schema(retention=EVERY))
    assert connection.query(with_ttl).body.count(b"\n") == len(TABLES)
    assert EVERY.changes(connection) == []
    fewer = Retention({"traces": "4w"})
    assert len(fewer.changes(connection)) == 2 * 2 + 6  # two tables change, the others' end
    apply(connection, Schema(retention=fewer))
    told = connection.query(with_ttl).body.decode()
    assert told.count("toIntervalWeek(4)") == told.count("\n") == 2
    apply(connection, Schema())
    assert connection.query(with_ttl).body == b""


def test_what_is_old_goes_and_what_a_wrong_clock_dates_far_ahead_stays(connection: Connection) -> None:
    apply(connection, Schema(retention=EVERY))
    times = {"now": "now64(9)", "old": "now64(9) - INTERVAL 40 DAY", "ahead": "toDateTime64('2150-01-01 00:00:00', 9)"}
    for name, time in times.items():
        connection.query(f"INSERT INTO otel.otel_traces (Timestamp, SpanName) SELECT {time}, '{name}'")
    connection.query("OPTIMIZE TABLE otel.otel_traces FINAL")
    left = connection.query("SELECT SpanName FROM otel.otel_traces ORDER BY Timestamp", "TSVRaw").body.decode()
    assert left.split() == ["now", "ahead"]


# Several collectors on one server: here, one that another collector serves over HTTP.


def server(address: str) -> ClickHouseStore:
    found = store_address(address)
    return ClickHouseStore(found, found.password, lambda _: None)


@pytest.fixture
def address(collector: Any) -> str:
    return as_store(collector)


def locks(store: ClickHouseStore) -> list[str]:
    asked = "SELECT name FROM system.tables WHERE database = 'otel' AND startsWith(name, 'schema_lock')"
    return store.query(asked).body.decode().split()


def files_with(directory: Path, extra: str) -> Path:
    files = directory / "schema"
    shutil.copytree(FILES, files)
    (files / "9000_extra.sql").write_text(extra)
    return files


def test_of_several_collectors_one_changes_the_schema(address: str, tmp_path: Path) -> None:
    extra = """
        CREATE TABLE IF NOT EXISTS otel.changes (by UInt8) ENGINE = MergeTree ORDER BY by;
        SELECT sleep(0.3);
        INSERT INTO otel.changes VALUES (1);
    """
    schema = Schema(shared=True, files=files_with(tmp_path, extra))
    outcomes: list[Any] = []

    def collector() -> None:
        store = server(address)
        try:
            outcomes.append(apply(store, schema))
        except TracegradError as error:
            outcomes.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=collector) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    store = server(address)
    assert outcomes == [9000] * 4
    assert store.query("SELECT count() FROM otel.changes").body == b"1\n"
    assert locks(store) == []
    store.execute("DROP TABLE otel.changes")
    store.execute("ALTER TABLE otel.schema_migrations DELETE WHERE number = 9000 SETTINGS mutations_sync = 2")
    store.close()


def test_a_lock_is_waited_for_and_taken_from_the_dead(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = server(address)
    dead = SchemaLock(store, None)
    with dead.held():
        dead.still_here()
        monkeypatch.setattr(schema_lock, "WAIT_S", 0.0)
        told = pytest.raises(StoreError, match=r"another collector .* process \d+ on ")
        with told as refused, SchemaLock(store, None).held():
            pytest.fail("two hold it")
        assert refused.value.retryable
        monkeypatch.setattr(schema_lock, "STALE_S", -1)  # by now it counts as dead
        with SchemaLock(store, None).held():
            assert len(locks(store)) == 2
        assert locks(store) == []
    store.close()


def test_a_lock_ends_when_its_holder_fails(address: str) -> None:
    store = server(address)
    with pytest.raises(StoreError, match="nonsense"), SchemaLock(store, None).held():
        store.query("SELECT nonsense")
    assert locks(store) == []
    store.close()
