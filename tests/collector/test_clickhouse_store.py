"""A server as the store: a real one, which here is another collector, and one whose answers to inserts get lost."""

import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from clickhouse_between import Between, as_store, running_between, writer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.chdb_store import ChdbStore
from collector.clickhouse_store import ClickHouseStore
from collector.engine import Engine
from collector.rows import pieces
from collector.server_features import require_cluster, require_formats
from collector.signals import TRACES
from collector.store import Answer, StoreError
from tracegrad.errors import TracegradError
from tracegrad.store_address import store_address

SQL = "SELECT count() FROM otel.otel_traces WHERE SpanName = '{}'"


@pytest.fixture
def between(collector: Any) -> Iterator[Between]:
    with running_between(collector.clickhouse, writer(collector)) as server:
        yield server


def store_at(url: str, **options: Any) -> ClickHouseStore:
    address = store_address(url)
    prepare = options.pop("prepare", lambda _: None)
    return ClickHouseStore(address, options.pop("password", address.password), prepare, **options)


@pytest.fixture
def store(between: Between) -> Iterator[ClickHouseStore]:
    url = f"clickhouse://somebody@127.0.0.1:{between.server_port}/otel?send_receive_timeout=2"
    made = store_at(url, password="hush-hush")
    yield made
    made.close()


def rows(name: str) -> list[bytes]:
    """A span of this name, as it is inserted."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.name, span.start_time_unix_nano = name, time.time_ns()
    return [piece.data for piece in pieces([request.SerializeToString()], [1 << 40])]


def count(store: ClickHouseStore, name: str) -> int:
    return int(store.query(SQL.format(name)).body)


@pytest.mark.parametrize("parameters", ["", "?compression=zstd", "?compression=lz4", "?max_insert_threads=1"])
def test_bytes_become_rows(collector: Any, parameters: str) -> None:
    name = f"store-rows-{parameters}"
    store = store_at(as_store(collector, parameters))
    store.insert(TRACES, rows(name), "store-rows")
    assert count(store, name) == 1
    assert store.delete("otel.otel_traces", f"WHERE SpanName = '{name}'") == 1
    assert (count(store, name), store.delete("otel.otel_traces", f"WHERE SpanName = '{name}'")) == (0, 0)
    store.close()


def test_values_of_parameters_are_plain_in_both_stores(store: ClickHouseStore, tmp_path: Path) -> None:
    given = {"a": "back\\slash, 'quote',\ttab and\nline", "b": "{b:String}"}
    asked = "SELECT {a:String} AS a, {b:String} AS b"
    with Engine(tmp_path / "store") as engine, closing(ChdbStore(engine)) as embedded:
        for either in (store, embedded):
            assert orjson.loads(either.query(asked, "JSONEachRow", given).body) == given


def test_what_is_sent_and_how(store: ClickHouseStore, between: Between) -> None:
    store.insert(TRACES, rows("store-sent"), "its-id")
    ((parameters, body),) = between.inserts
    asked = {name: parameters[name] for name in ("query_id", "wait_end_of_query", "async_insert")}
    assert asked == {"query_id": "its-id", "wait_end_of_query": "1", "async_insert": "0"}
    assert body.startswith(b"INSERT INTO otel.otlp_traces SETTINGS ")
    assert "hush-hush" not in repr(parameters)
    assert between.logins == {"Basic " + b64encode(b"somebody:hush-hush").decode()}
    assert "hush" not in f"{store.name} {store!r} {vars(store)['_address']}"


@pytest.mark.parametrize(
    ("behaviour", "code", "retryable", "said"),
    [
        ("500 Code: 241. DB::Exception: Memory limit exceeded", 241, True, "Memory limit"),
        ("404 Code: 60. DB::Exception: Unknown table", 60, True, "Unknown table"),
        ("403 Code: 516. DB::Exception: Authentication failed", 516, True, "Authentication failed"),
        ("500 Code: 252. DB::Exception: Too many parts", 252, True, "Too many parts"),
        ("400 Code: 395. DB::Exception: otlp value is nested", 395, False, "nested"),
        ("400 Code: 117. DB::Exception: Incorrect data", 117, False, "Incorrect data"),
        ("502 <html>a proxy", 0, True, "502"),
        ("503 ", 0, True, "503"),
    ],
)
def test_what_a_server_refuses_says_whether_to_come_again(
    *, store: ClickHouseStore, between: Between, behaviour: str, code: int, retryable: bool, said: str
) -> None:
    between.behaviours = [behaviour]
    with pytest.raises(StoreError, match=said) as refused:
        store.insert(TRACES, rows("store-refused"), "an-id")
    assert (refused.value.code, refused.value.retryable) == (code, retryable)
    assert "hush" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(between.inserts) == 1


@pytest.mark.parametrize(("behaviour", "stored"), [("cut", 0), ("lost", 1), ("hang", 0)])
def test_an_insert_without_an_answer_was_sent_once(
    store: ClickHouseStore, between: Between, behaviour: str, stored: int
) -> None:
    """The driver does not send it again by itself: whether to is for whoever can find out what became of it."""
    name = f"store-{behaviour}"
    assert count(store, name) == 0
    between.behaviours = [behaviour]
    with pytest.raises(StoreError, match="no answer from clickhouse://127") as refused:
        store.insert(TRACES, rows(name), "an-id")
    assert (refused.value.code, refused.value.retryable) == (0, True)
    assert len(between.inserts) == 1
    assert count(store, name) == stored
    store.insert(TRACES, rows(name), "an-id")  # the connection is as good as new
    assert count(store, name) == stored + 1


def test_an_insert_at_work_is_stopped(store: ClickHouseStore, between: Between) -> None:
    assert not store.is_running("it's-id")
    assert between.kills == []
    between.running = [1, 0]
    assert not store.is_running("it's-id")
    assert between.kills == ["KILL QUERY WHERE query_id = 'it\\'s-id' SYNC"]
    between.running = [1, 1]  # in a step that cannot be stopped
    assert store.is_running("it's-id")


def test_a_server_that_is_away_is_tried_again(between: Between, free_port: Callable[[], int]) -> None:
    made: list[str] = []
    away = f"clickhouse://127.0.0.1:{free_port()}"
    store = store_at(away, prepare=lambda it: made.append(it.name))
    store.begin()  # says so in the log, and no more
    with pytest.raises(StoreError, match="Connection refused") as refused:
        store.insert(TRACES, rows("store-away"), "an-id")
    assert (refused.value.code, refused.value.retryable, made) == (0, True, [])
    store._address = store_address(f"clickhouse://127.0.0.1:{between.server_port}")
    for _ in range(2):
        store.insert(TRACES, rows("store-away"), "an-id")
    assert made == [f"clickhouse://127.0.0.1:{between.server_port}"]  # once
    assert count(store, "store-away") == 2
    store.close()


def test_a_schema_that_is_gone_is_made_again(between: Between) -> None:
    made: list[str] = []
    store = store_at(f"clickhouse://127.0.0.1:{between.server_port}", prepare=lambda it: made.append(it.name))
    between.behaviours = ["pass", "404 Code: 60. DB::Exception: Unknown table", "pass"]
    store.insert(TRACES, rows("store-gone"), "an-id")
    with pytest.raises(StoreError, match="Unknown table"):
        store.insert(TRACES, rows("store-gone"), "an-id")
    assert len(made) == 1
    store.insert(TRACES, rows("store-gone"), "an-id")
    assert len(made) == 2
    store.close()


def test_a_schema_that_cannot_be_made_is_told_at_once_and_costs_no_row_later(collector: Any) -> None:
    def newer(_: object) -> None:
        raise TracegradError("the store has schema 9999: upgrade tracegrad")

    store = store_at(as_store(collector), prepare=newer)
    with pytest.raises(TracegradError, match="upgrade tracegrad"):
        store.begin()
    with pytest.raises(StoreError, match="upgrade tracegrad") as refused:
        store.insert(TRACES, rows("store-newer"), "an-id")
    assert refused.value.retryable
    store.close()


@pytest.mark.parametrize("code", [516, 497])
def test_a_set_up_that_is_wrong_ends_the_start(between: Between, code: int) -> None:
    store = store_at(f"clickhouse://127.0.0.1:{between.server_port}")
    between.selects = [f"403 Code: {code}. DB::Exception: not you"]
    with pytest.raises(StoreError, match="not you"):
        store.begin()
    store.close()


def test_an_old_server_is_told_apart() -> None:
    with pytest.raises(TracegradError, match=r"is ClickHouse 25.3.1.1, which lacks .*format_schema_source.* 25.6"):
        require_formats("clickhouse://h:8123", "25.3.1.1", {"input_format_protobuf_oneof_presence"})
    require_formats("clickhouse://h:8123", "26.9", {"input_format_protobuf_oneof_presence", "format_schema_source"})


class Servers:
    """What a cluster says of itself."""

    def __init__(self, macros: dict[str, str], shards: dict[str, str]) -> None:
        self._answers = {"system.macros": macros, "system.clusters": shards}

    def query(self, sql: str, output_format: str = "TabSeparated") -> Answer:
        (pairs,) = (pairs for table, pairs in self._answers.items() if table in sql)
        return Answer(b"".join(orjson.dumps(pair) + b"\n" for pair in pairs.items()))


@pytest.mark.parametrize(
    ("macros", "shards", "why"),
    [
        ({"shard": "1", "replica": "a"}, {"other": "1"}, r"knows no cluster 'main', only other"),
        ({"shard": "1", "replica": "a"}, {"main": "3"}, r"'main' has 3 shards"),
        ({"shard": "1"}, {"main": "1"}, r"no macro replica"),
    ],
)
def test_a_cluster_that_cannot_hold_the_tables_is_refused(
    macros: dict[str, str], shards: dict[str, str], why: str
) -> None:
    with pytest.raises(TracegradError, match=why):
        require_cluster(Servers(macros, shards), "main")


def test_a_cluster_may_be_named_by_a_macro() -> None:
    require_cluster(Servers({"shard": "1", "replica": "a", "cluster": "main"}, {"main": "1"}), "{cluster}")
