"""otel-config/collector.yaml: that it keeps what it promises, by the option names of otelcol-contrib 0.165.

No registry that the tests use has a Collector with the ClickHouse exporter, so it is not started here. What the
exporter sends is replayed in test_official_inserts.py.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from clickhouse_go import ClickHouseGo
from official_rollout import Recorded, trace_row

from tracegrad.store_writer import PASSWORD_FILE, WRITER

FILE = Path(__file__).parents[2] / "otel-config" / "collector.yaml"
TEXT = FILE.read_text()
CONFIG: dict[str, Any] = yaml.safe_load(TEXT)

NAME = {"name": None}
SIZES = {"flush_timeout": None, "min_size": None, "max_size": None, "sizer": None}
# Option names of each component; None stands for a value.
OPTIONS: dict[str, dict[str, Any]] = {
    "exporters/clickhouse": {
        "endpoint": None,
        "username": None,
        "password": None,
        "database": None,
        "connection_params": None,
        "ttl": None,
        "table_engine": {"name": None, "params": None},
        "cluster_name": None,
        "create_schema": None,
        "json": None,
        "compress": None,
        "async_insert": None,
        "tls": None,
        "logs_table_name": None,
        "traces_table_name": None,
        "profiles_table_name": None,
        "metrics_tables": dict.fromkeys(("gauge", "sum", "summary", "histogram", "exponential_histogram"), NAME),
        "timeout": None,
        "retry_on_failure": dict.fromkeys(
            ("enabled", "initial_interval", "randomization_factor", "multiplier", "max_interval", "max_elapsed_time")
        ),
        "sending_queue": {
            "enabled": None,
            "wait_for_result": None,
            "block_on_overflow": None,
            "sizer": None,
            "queue_size": None,
            "num_consumers": None,
            "storage": None,
            "batch": SIZES,
        },
    },
    "extensions/file_storage": {
        "directory": None,
        "timeout": None,
        "fsync": None,
        "create_directory": None,
        "directory_permissions": None,
        "recreate": None,
        "compaction": dict.fromkeys(
            (
                "on_start",
                "on_rebound",
                "directory",
                "rebound_needed_threshold_mib",
                "rebound_trigger_threshold_mib",
                "max_transaction_size",
                "check_interval",
                "cleanup_on_start",
            )
        ),
    },
    "processors/memory_limiter": dict.fromkeys(
        ("check_interval", "limit_mib", "spike_limit_mib", "limit_percentage", "spike_limit_percentage")
    ),
    "receivers/otlp": {
        "protocols": {
            "grpc": {"endpoint": None, "max_recv_msg_size_mib": None},
            "http": {"endpoint": None, "max_request_body_size": None},
        }
    },
    "receivers/prometheus": {"config": {"scrape_configs": None}},
}


def unknown(config: Mapping[str, Any], options: Mapping[str, Any], path: str) -> Iterator[str]:
    """Where `config` has an option that `options` has not."""
    for name, value in config.items():
        if name not in options:
            yield f"{path}/{name}"
        elif options[name] is not None:
            yield from unknown(value, options[name], f"{path}/{name}")


def given(text: str) -> str:
    """What an expression is when the environment says nothing."""
    found = re.fullmatch(r"\$\{env:[A-Z_]+:-(.*)\}", text)
    assert found, text
    return found[1]


def components() -> dict[str, Any]:
    kinds = ("extensions", "receivers", "processors", "exporters")
    return {f"{kind}/{name}": config for kind in kinds for name, config in CONFIG[kind].items()}


@pytest.mark.parametrize("path", components())
def test_every_option_is_one_of_the_component(path: str) -> None:
    assert list(unknown(components()[path], OPTIONS[path], path)) == []


def test_an_option_that_there_is_not_would_be_noticed() -> None:
    wrong = {"sending_queue": {"batch": {"send_batch_size": 1}}, "dsn": ""}
    assert list(unknown(wrong, OPTIONS["exporters/clickhouse"], "x")) == [
        "x/sending_queue/batch/send_batch_size",
        "x/dsn",
    ]


def test_every_component_is_used_and_every_used_one_is_there() -> None:
    service = CONFIG["service"]
    used = {f"extensions/{name}" for name in service["extensions"]}
    for pipeline in service["pipelines"].values():
        used |= {f"{kind}/{name}" for kind, members in pipeline.items() for name in members}
    assert used == components().keys()
    assert service["pipelines"].keys() == {"traces", "logs", "metrics"}


def test_nothing_is_dropped_while_clickhouse_is_away() -> None:
    exporter = CONFIG["exporters"]["clickhouse"]
    queue = exporter["sending_queue"]
    assert (queue["enabled"], queue["block_on_overflow"], queue["storage"]) == (True, True, "file_storage")
    assert exporter["retry_on_failure"] == {
        "enabled": True,
        "initial_interval": "1s",
        "max_interval": "30s",
        "max_elapsed_time": "0s",  # for ever
    }
    assert CONFIG["extensions"]["file_storage"]["fsync"] is True
    assert "batch" not in CONFIG["processors"]


def test_queue_and_batches_are_measured_in_bytes() -> None:
    queue = CONFIG["exporters"]["clickhouse"]["sending_queue"]
    batch = queue["batch"]
    # A sizer that is left out is not always the queue's own.
    assert (queue["sizer"], batch["sizer"]) == ("bytes", "bytes")
    assert 1 << 20 <= batch["min_size"] < batch["max_size"]
    assert 100 * batch["max_size"] < queue["queue_size"]


def test_the_largest_batch_of_the_largest_spans_is_taken(collector: Any) -> None:
    size = CONFIG["exporters"]["clickhouse"]["sending_queue"]["batch"]["max_size"]
    recorded = Recorded("tracegrad.sidecar")
    row = trace_row(recorded.spans[2]) | {"ScopeName": recorded.scope}
    row["SpanAttributes"] |= {"gen_ai.input.messages": "words " * 800, "filler": "[1,22,333]" * 100}
    n_rows = size // recorded.spans[2].ByteSize() // 5  # each is five times as large now, at least
    rows = [row | {"SpanId": f"{number:016x}"} for number in range(n_rows)]
    assert sum(len(value) for value in row["SpanAttributes"].values()) * n_rows > size
    client = ClickHouseGo(
        collector.clickhouse, collector.writer, compress=CONFIG["exporters"]["clickhouse"]["compress"]
    )
    client.insert('"otel"."otel_traces"', list(row), rows)
    assert collector.sql(f"SELECT count() FROM otel_traces WHERE TraceId = '{recorded.trace_id}'") == str(n_rows)


def test_secrets_and_addresses_come_from_the_environment_and_default_to_loopback() -> None:
    exporter = CONFIG["exporters"]["clickhouse"]
    assert given(exporter["endpoint"]) == "http://127.0.0.1:8123"
    assert given(exporter["password"]) == ""
    assert given(exporter["username"]) == WRITER
    variables = set(re.findall(r"\$\{env:([A-Z_]+)", TEXT))
    explained = TEXT.split("extensions:")[0]
    assert [name for name in variables if name not in explained] == []
    assert f"/{PASSWORD_FILE})" in explained
    protocols = CONFIG["receivers"]["otlp"]["protocols"]
    reader = CONFIG["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]
    listens = [protocols["grpc"]["endpoint"], protocols["http"]["endpoint"], f"{reader['host']}:{reader['port']}"]
    assert listens == ["127.0.0.1:4317", "127.0.0.1:4318", "127.0.0.1:8888"]


def test_it_writes_into_tables_that_the_store_has(collector: Any) -> None:
    exporter = CONFIG["exporters"]["clickhouse"]
    assert (exporter["create_schema"], exporter["database"]) == (False, "otel")
    named = {exporter["traces_table_name"], exporter["logs_table_name"]}
    named |= {table["name"] for table in exporter["metrics_tables"].values()}
    tables = collector.sql("SELECT name FROM system.tables WHERE database = 'otel' AND engine LIKE '%MergeTree'")
    assert named <= set(tables.split())


def test_what_it_scrapes_are_our_own_pages() -> None:
    jobs = CONFIG["receivers"]["prometheus"]["config"]["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in jobs}
    assert targets == {"tracegrad-sidecar": ["127.0.0.1:8089"], "tracegrad-collector": ["127.0.0.1:14318"]}
    assert "--otlp-http-port 14318" in TEXT
