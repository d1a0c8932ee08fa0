"""What the official Collector's ClickHouse exporter inserts makes the rows that the same spans and events make by OTLP.

Its statements are replayed as its driver sends them, in the layouts of its versions. The JSON layout is refused.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from clickhouse_go import ClickHouseGo, RefusedError
from official_rollout import Recorded, export, log_row, trace_row

from tracegrad import names

TRACES = (
    "Timestamp",
    "TraceId",
    "SpanId",
    "ParentSpanId",
    "TraceState",
    "SpanName",
    "SpanKind",
    "ServiceName",
    "ResourceAttributes",
    "ScopeName",
    "ScopeVersion",
    "SpanAttributes",
    "Duration",
    "StatusCode",
    "StatusMessage",
    "Events.Timestamp",
    "Events.Name",
    "Events.Attributes",
    "Links.TraceId",
    "Links.SpanId",
    "Links.TraceState",
    "Links.Attributes",
)
LOGS = (
    "Timestamp",
    "TraceId",
    "SpanId",
    "TraceFlags",
    "SeverityText",
    "SeverityNumber",
    "ServiceName",
    "Body",
    "ResourceSchemaUrl",
    "ResourceAttributes",
    "ScopeSchemaUrl",
    "ScopeName",
    "ScopeVersion",
    "ScopeAttributes",
    "LogAttributes",
    "EventName",
)
SIDECAR_SCOPE = "tracegrad.sidecar"
OF_DELIVERY = {"IngestId"}
"""What the collector notes of its own inserts."""
SCOPES_IN_COLUMNS = {"ScopeName", "ScopeVersion"}
OF_SCHEMA = {"ResourceSchemaUrl", "ScopeSchemaUrl", "ScopeName", "ScopeVersion", "ScopeAttributes"}


@dataclass(frozen=True)
class Layout:
    """Columns that a version of the exporter inserts. `differs`: those whose values it cannot, or does not, give us."""

    traces: Sequence[str] = TRACES
    logs: Sequence[str] = LOGS
    differs: frozenset[str] = frozenset()
    change: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda row: row)
    names_events: bool = True


def in_attributes(row: dict[str, Any]) -> dict[str, Any]:
    """As of old: the scope is two attributes of the span, kinds and statuses have their names of the protocol."""
    if "SpanName" not in row:
        return row
    scope = {"otel.scope.name": row["ScopeName"], "otel.scope.version": row["ScopeVersion"]}
    return row | {
        "SpanAttributes": row["SpanAttributes"] | scope,
        "SpanKind": f"SPAN_KIND_{row['SpanKind'].upper()}",
        "StatusCode": f"STATUS_CODE_{row['StatusCode'].upper()}",
    }


def with_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"TimestampTime": row["Timestamp"] // 10**9}


LAYOUTS = {
    "today": Layout(),
    "logs with TimestampTime": Layout(logs=("Timestamp", "TimestampTime", *LOGS[1:]), change=with_seconds),
    "logs without EventName": Layout(logs=LOGS[:-1], differs=frozenset({"EventName"}), names_events=False),
    "without scopes and schemas": Layout(
        traces=tuple(name for name in TRACES if name not in SCOPES_IN_COLUMNS),
        logs=tuple(name for name in LOGS[:-1] if name not in OF_SCHEMA),
        differs=frozenset(OF_SCHEMA | {"EventName", "SpanAttributes", "SpanKind", "StatusCode"}),
        change=in_attributes,
        names_events=False,
    ),
}


def replay(client: ClickHouseGo, recorded: Recorded, layout: Layout) -> None:
    """By the exporter's statements."""
    scope = {"ScopeName": recorded.scope}
    spans = [layout.change(trace_row(span) | scope) for span in recorded.spans]
    client.insert('"otel"."otel_traces"', layout.traces, spans)
    records = [layout.change(log_row(record) | scope) for record in recorded.records]
    client.insert("`otel`.`otel_logs`", layout.logs, records)


@pytest.fixture(scope="module")
def by_otlp(collector: Any) -> Recorded:
    """The rollout that came by OTLP, with which all others are compared."""
    return export(collector, Recorded())


def stored(collector: Any, recorded: Recorded, table: str, count: int) -> list[dict[str, Any]]:
    """All columns, those that are computed at insert too, of all rows, once they are there."""
    deadline = time.monotonic() + 60
    while True:
        rows = recorded.normal(
            collector.sql(
                f"SELECT * FROM {table} WHERE TraceId = '{recorded.trace_id}' ORDER BY ALL "
                "SETTINGS asterisk_include_materialized_columns = 1, asterisk_include_alias_columns = 1 "
                "FORMAT JSONEachRow"
            )
        )
        if len(rows) >= count or time.monotonic() > deadline:
            assert len(rows) == count
            return sorted(rows, key=lambda row: str(row["SpanId"]))
        time.sleep(0.05)


def viewed(collector: Any, recorded: Recorded, view: str) -> list[dict[str, Any]]:
    """All rows of a view that belong to the rollout."""
    rows = collector.sql(f"SELECT * FROM {view} WHERE rollout_id = '{recorded.rollout_id}' FORMAT JSONEachRow")
    return sorted(recorded.normal(rows), key=str)


@pytest.mark.parametrize("compress", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_those_that_come_by_otlp(name: str, compress: str, collector: Any, by_otlp: Recorded) -> None:
    layout, recorded = LAYOUTS[name], Recorded()
    replay(ClickHouseGo(collector.clickhouse, collector.writer, compress=compress), recorded, layout)
    for table, count in (("otel_traces", 4), ("otel_logs", 2)):
        wanted, found = stored(collector, by_otlp, table, count), stored(collector, recorded, table, count)
        for one, other in zip(wanted, found, strict=True):
            assert len(one) > 20, "the computed columns are there"
            different = {column for column in one if one[column] != other[column]} - OF_DELIVERY
            assert different <= layout.differs, {column: (one[column], other[column]) for column in different}
    lookup = "SELECT max(End) - min(Start) FROM otel_traces_trace_id_ts WHERE TraceId = "
    assert collector.sql(f"{lookup}'{recorded.trace_id}'") == collector.sql(f"{lookup}'{by_otlp.trace_id}'")


@pytest.mark.parametrize("name", LAYOUTS)
def test_views_show_what_they_show_of_otlp(name: str, collector: Any, by_otlp: Recorded) -> None:
    layout, recorded = LAYOUTS[name], Recorded()
    replay(ClickHouseGo(collector.clickhouse, collector.writer), recorded, layout)
    stored(collector, by_otlp, "otel_traces", 4)
    stored(collector, by_otlp, "otel_logs", 2)
    calls = viewed(collector, recorded, "llm_calls")
    tokens = {call["span_id"]: (call["agent"], call["prompt_token_ids"], call["trainable"]) for call in calls}
    assert tokens == {"CALL": ("writer", [1, 2, 999999999], True), "FAILED": ("writer", [1, 2, 999999999], False)}
    assert calls == viewed(collector, by_otlp, "llm_calls")
    rewards, rollouts = viewed(collector, recorded, "rewards"), viewed(collector, recorded, "rollouts")
    if layout.names_events:
        assert {reward["span_id"]: reward["score"] for reward in rewards} == {"CALL": 0.5, "ROOT": 1}
        assert rewards == viewed(collector, by_otlp, "rewards")
        assert [rollout["reward"] for rollout in rollouts] == [1.5]
        assert rollouts == viewed(collector, by_otlp, "rollouts")
    else:
        # Such a version does not write the name of an event, so what it sends of a reward is no reward.
        assert rewards == []
        assert [(rollout["status"], rollout["n_calls"], rollout["reward"]) for rollout in rollouts] == [
            ("succeeded", 2, None)
        ]


def test_of_the_sidecar_s_own_spans_token_ids_are_kept_as_text_too(collector: Any) -> None:
    by_otlp, recorded = export(collector, Recorded(SIDECAR_SCOPE)), Recorded(SIDECAR_SCOPE)
    replay(ClickHouseGo(collector.clickhouse, collector.writer), recorded, LAYOUTS["today"])
    texts_of_tokens = {names.PROMPT_TOKEN_IDS, names.RESPONSE_TOKEN_IDS, names.RESPONSE_LOGPROBS}
    for one, other in zip(
        stored(collector, by_otlp, "otel_traces", 4), stored(collector, recorded, "otel_traces", 4), strict=True
    ):
        for row in (one, other):
            row["SpanAttributes"] = {
                key: value for key, value in row["SpanAttributes"].items() if key not in texts_of_tokens
            }
            del row["IngestId"]
        assert one == other
    assert viewed(collector, recorded, "llm_calls") == viewed(collector, by_otlp, "llm_calls")


def test_a_span_that_comes_by_both_roads_is_shown_once(collector: Any) -> None:
    recorded, client = Recorded(), ClickHouseGo(collector.clickhouse, collector.writer)
    replay(client, recorded, LAYOUTS["today"])
    once = {view: viewed(collector, recorded, view) for view in ("llm_calls", "rewards", "rollouts")}
    replay(client, recorded, LAYOUTS["today"])
    assert all(once.values())
    assert {view: viewed(collector, recorded, view) for view in once} == once


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("otel_traces", "SpanAttributesKeys"),
        ("otel_traces", "ResourceAttributesKeys"),
        ("otel_logs", "LogAttributesKeys"),
    ],
)
def test_the_layout_of_json_columns_is_refused_by_name(table: str, column: str, collector: Any) -> None:
    client = ClickHouseGo(collector.clickhouse, collector.writer)
    assert column not in client.describe(f"otel.{table}")
    with pytest.raises(RefusedError, match=column) as refused:
        client.post(f"INSERT INTO otel.{table} (Timestamp, {column}) FORMAT Native", b"\0\0")
    assert refused.value.code == 16  # NO_SUCH_COLUMN_IN_TABLE
