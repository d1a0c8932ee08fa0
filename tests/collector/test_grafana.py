"""The Grafana dashboards: every panel's query runs on a store with rollouts, rewards, policies and steps, and answers
what the panel draws. Macros and variables are expanded here as Grafana's ClickHouse plug-in 4.x does it."""

import importlib.util
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad import names, otlp
from tracegrad.otlp import SpanContext

GRAFANA = Path(__file__).parents[2] / "otel-config" / "grafana"
DASHBOARDS = {file.stem: json.loads(file.read_text()) for file in sorted((GRAFANA / "dashboards").glob("*.json"))}
PANELS = {
    panel["title"]: panel
    for dashboard in DASHBOARDS.values()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
}
VARIABLES = {
    variable["name"]: variable for dashboard in DASHBOARDS.values() for variable in dashboard["templating"]["list"]
}
POLICY, AGENT, TASK = f"policy-{secrets.token_hex(4)}", f"writer-{secrets.token_hex(4)}", f"task-{secrets.token_hex(4)}"
CHOSEN = {"policy": (POLICY,), "agent": (AGENT,), "task": (TASK,), "metric": ("loss", "grad_norm")}
EVERYTHING = {"policy": (), "agent": (), "task": (), "metric": CHOSEN["metric"]}
"""No value: all are chosen."""
BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""A time of its own, apart from what other tests store."""
INTERVAL_S = 60
NUMBER = re.compile(r"(Nullable\()?(U?Int\d+|Float\d+|Bool)\)?")
TEXT = {"String", "LowCardinality(String)"}


def ns(at: timedelta) -> int:
    return int((BEGIN + at).timestamp() * 1e9)


@dataclass(frozen=True)
class Answer:
    columns: dict[str, str]
    rows: list[list[Any]]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


Ask = Callable[..., Answer]


def arguments(sql: str, at: int) -> tuple[list[str], int]:
    """The arguments of the macro whose bracket opens at `at`, and where it ends."""
    depth, begin, found = 0, at + 1, []
    for place in range(at, len(sql)):
        if sql[place] == "(":
            depth += 1
        elif sql[place] == ")":
            depth -= 1
        if (sql[place] == "," and depth == 1) or depth == 0:
            found.append(sql[begin:place])
            begin = place + 1
        if depth == 0:
            return found, place + 1
    raise AssertionError(f"a macro without an end: {sql[at:]}")


def expand(sql: str, chosen: Mapping[str, tuple[str, ...]], begin: datetime, end: datetime) -> str:
    """The SQL that ClickHouse gets: conditional parts and variables first, as the plug-in does in the browser."""
    while (at := sql.rfind("$__conditionalAll(")) >= 0:
        (condition, variable), after = arguments(sql, at + len("$__conditionalAll"))
        name = variable.strip().strip("${}")
        sql = sql[:at] + (condition if chosen[name] else "1=1") + sql[after:]
    for name, values in chosen.items():
        quoted = ",".join("'" + value.replace("'", "\\'") + "'" for value in values)
        sql = sql.replace("${" + name + ":singlequote}", quoted)
    sql = sql.replace("$__interval_s", str(INTERVAL_S))
    for macro in ("$__timeFilter", "$__timeInterval"):
        while (at := sql.find(macro + "(")) >= 0:
            (column,), after = arguments(sql, at + len(macro))
            sql = sql[:at] + _time(macro, column, begin, end) + sql[after:]
    assert "$" not in sql, f"not expanded: {sql}"
    return sql


def _time(macro: str, column: str, begin: datetime, end: datetime) -> str:
    if macro == "$__timeInterval":
        return f"toStartOfInterval(toDateTime({column}), INTERVAL {INTERVAL_S} second)"
    bounds = [f"toDateTime({int(at.timestamp())})" for at in (begin, end)]
    return f"{column} >= {bounds[0]} AND {column} <= {bounds[1]}"


@pytest.fixture(scope="module")
def ask(collector: Any, seeded: None) -> Ask:
    """What a panel or variable gets, in a time range of `hours` from `BEGIN` on."""

    def run(sql: str, chosen: Mapping[str, tuple[str, ...]] = EVERYTHING, since: datetime = BEGIN) -> Answer:
        statement = expand(sql, chosen, since, since + timedelta(hours=2))
        answer = json.loads(collector.sql(statement + "\nFORMAT JSONCompact"))
        return Answer({column["name"]: column["type"] for column in answer["meta"]}, answer["data"])

    return run


@pytest.fixture(scope="module")
def seeded(collector: Any) -> None:
    """Two versions are published, half an hour apart; an agent runs before, between and after; two steps are taken."""
    traces, logs = ExportTraceServiceRequest(), ExportLogsServiceRequest()
    for request in (traces.resource_spans, logs.resource_logs):
        request.add().resource.attributes.add(key="service.name").value.string_value = "grafana-test"
    spans = traces.resource_spans[0].scope_spans.add().spans
    records = logs.resource_logs[0].scope_logs.add().log_records
    calls = []
    for number, (minute, version) in enumerate([(5, 0), (35, 0), (65, 1), (70, 2)]):
        rollout = f"grafana-{POLICY}-{number}"
        root, at = SpanContext.new(), timedelta(minutes=minute)
        identity: dict[str, otlp.Value] = {
            names.ROLLOUT_ID: rollout,
            names.ROLLOUT_ATTEMPT: 0,
            names.TASK_ID: TASK,
        }
        ended: dict[str, otlp.Value] = {names.ROLLOUT_STATUS: "failed" if number == 1 else "succeeded"}
        spans.append(
            otlp.span(
                names.ROOT_SPAN_NAME,
                root,
                start_ns=ns(at),
                end_ns=ns(at + timedelta(seconds=30)),
                values=identity | ended,
            )
        )
        agent = SpanContext.new(root.trace_id)
        named: dict[str, otlp.Value] = {names.OPERATION_NAME: "invoke_agent", names.AGENT_NAME: AGENT}
        spans.append(
            otlp.span("invoke_agent", agent, parent_span_id=root.span_id, start_ns=ns(at), end_ns=ns(at), values=named)
        )
        for trainable in (True, False):
            context = SpanContext.new(root.trace_id)
            calls.append((context, rollout))
            told: dict[str, otlp.Value] = {
                names.TRAINABLE: trainable,
                names.UNTRAINABLE_REASON: None if trainable else "error",
                names.ERROR_TYPE: None if trainable else "503",
                names.POLICY_NAME: POLICY,
                names.POLICY_VERSION: version,
                names.PROMPT_TOKEN_IDS: "[1,2,3]",
                names.RESPONSE_TOKEN_IDS: "[4,5]",
                names.RESPONSE_LOGPROBS: "[-1,-2]",
                names.FINISH_REASONS: ["stop"],
                names.RESPONSE_MODEL: "served",
            }
            spans.append(
                otlp.span(
                    "chat served",
                    context,
                    parent_span_id=agent.span_id,
                    start_ns=ns(at + timedelta(seconds=2)),
                    end_ns=ns(at + timedelta(seconds=3)),
                    values=identity | told,
                )
            )
        scored: dict[str, otlp.Value] = {
            names.EVALUATION_NAME: "exact",
            names.EVALUATION_SCORE: float(version),
        }
        reward = otlp.event(names.EVALUATION_EVENT, root, identity | scored)
        reward.time_unix_nano = ns(at + timedelta(seconds=40))
        records.append(reward)
    assert collector.send(traces).status == 200
    assert collector.send(logs).status == 200
    wait_for(collector, f"SELECT count() FROM llm_calls WHERE policy = '{POLICY}'", len(calls))
    wait_for(collector, f"SELECT count() FROM rewards WHERE rollout_id LIKE 'grafana-{POLICY}%'", len(records))
    store_training(collector, calls)
    store_counters(collector)


def wait_for(collector: Any, count: str, wanted: int) -> None:
    deadline = time.monotonic() + 60
    while int(collector.sql(count)) < wanted:
        assert time.monotonic() < deadline, count
        time.sleep(0.05)


def store_training(collector: Any, calls: list[tuple[SpanContext, str]]) -> None:
    """What the trainer writes: versions 1 and 2 at 0:30 and 1:00, by a step each that used a call and dropped one."""
    for version in (1, 2):
        step, ended = f"{POLICY}-step-{version}", BEGIN + timedelta(minutes=30 * version)
        measured = {"loss": 0.5, "grad_norm": 2, "reward_mean": 0.25 * version, "staleness_mean": 0.5}
        insert(
            collector,
            "policies",
            {
                "name": POLICY,
                "version": version,
                "sha256": "ab" * 32,
                "path": "/weights",
                "parent_version": version - 1 or None,
                "created_at": ended.replace(tzinfo=None),
                "step_id": step,
            },
        )
        insert(
            collector,
            "train_steps",
            {
                "step_id": step,
                "job": "job",
                "policy": POLICY,
                "from_version": version - 1,
                "to_version": version,
                "algorithm": "grpo",
                "config": "{}",
                "metrics": json.dumps(measured | {"staleness_max": 1, "seconds_update": 3.5}),
                "started_at": (ended - timedelta(seconds=20)).replace(tzinfo=None),
                "ended_at": ended.replace(tzinfo=None),
            },
        )
        for dropped, (context, rollout) in enumerate(calls[:2]):
            sample = {"trace_id": context.trace_id.hex(), "span_id": context.span_id.hex(), "rollout_id": rollout}
            verdict = {"used": not dropped, "drop_reason": "error" * dropped}
            judged = {"agent": AGENT, "reward": 1.0, "advantage": 0.5, "n_tokens": 2}
            insert(collector, "train_samples", {"step_id": step} | sample | judged | verdict)


def store_counters(collector: Any) -> None:
    """A sidecar dropped 3 spans, was restarted, and dropped 2 more; a spool set 1 record aside."""
    for table, name, attributes, minute, total in [
        ("sum", "sidecar_spans_total", {"state": "dropped_spool_full"}, 0, 7),
        ("sum", "sidecar_spans_total", {"state": "dropped_spool_full"}, 2, 10),
        ("sum", "sidecar_spans_total", {"state": "dropped_spool_full"}, 4, 2),
        ("sum", "sidecar_spans_total", {"state": "sent"}, 2, 1),
        ("sum", "sidecar_spans_total", {"state": "sent"}, 4, 99),
        ("gauge", "collector_spool_losses", {"signal": "logs", "kind": "refused_records"}, 0, 0),
        ("gauge", "collector_spool_losses", {"signal": "logs", "kind": "refused_records"}, 6, 1),
        ("gauge", "collector_spool_losses", {"signal": "logs", "kind": "refused_bytes"}, 0, 0),
        ("gauge", "collector_spool_losses", {"signal": "logs", "kind": "refused_bytes"}, 6, 500),
    ]:
        insert(
            collector,
            f"otel_metrics_{table}",
            {
                "ServiceName": "scraped",
                "MetricName": f"tracegrad_{name}",
                "Attributes": attributes,
                "TimeUnix": BEGIN + timedelta(minutes=minute),
                "Value": total,
            },
        )


def insert(collector: Any, table: str, row: Mapping[str, Any]) -> None:
    collector.client().insert(table, [list(row.values())], column_names=list(row))


def query(title: str) -> str:
    (target,) = PANELS[title]["targets"]
    return str(target["rawSql"])


def check(panel: Mapping[str, Any], answer: Answer) -> None:
    """The answer is one that Grafana can draw as this panel."""
    types = list(answer.columns.values())
    units = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
    assert units <= answer.columns.keys()
    assert answer.rows, "nothing to show"
    match panel["type"]:
        case "timeseries":
            # One time, first; at most one text, behind it, that names the series; rows in the order of time.
            assert panel["targets"][0]["format"] == 0
            assert next(iter(answer.columns)) == "time"
            assert types[0].startswith("DateTime")
            values = types[2:] if types[1] in TEXT else types[1:]
            assert values and all(NUMBER.fullmatch(kind) for kind in values), types
            times = [row[0] for row in answer.rows]
            assert times == sorted(times)
            labels = [tuple(row[:2]) for row in answer.rows]
            assert types[1] not in TEXT or len(set(labels)) == len(labels)
        case "stat":
            assert len(answer.rows) == 1
            assert all(NUMBER.fullmatch(kind) for kind in types), types
        case "barchart":
            assert types[0] in TEXT
            assert all(NUMBER.fullmatch(kind) for kind in types[1:]), types
        case "histogram":
            assert all(NUMBER.fullmatch(kind) for kind in types), types
        case "table":
            assert not [kind for kind in types if kind.startswith(("Array", "Map", "Tuple"))], types
        case other:
            raise AssertionError(f"no such panel here: {other}")


@pytest.mark.parametrize("title", PANELS)
def test_every_panel_has_something_to_show(title: str, ask: Ask) -> None:
    for chosen in (EVERYTHING, CHOSEN):
        check(PANELS[title], ask(query(title), chosen))


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_of_a_time_without_data_is_empty_and_no_error(title: str, ask: Ask) -> None:
    answer = ask(query(title), CHOSEN, since=BEGIN - timedelta(days=300))
    assert answer.columns
    always = {"Attempts by status": 1, "Calls of policies": 1, "Newest versions": 1}
    assert len(answer.rows) == always.get(title, 0)


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_offers_what_there_is(name: str, ask: Ask) -> None:
    variable = VARIABLES[name]
    assert variable["query"] == variable["definition"]
    offered = [row[0] for row in ask(variable["query"]).rows]
    assert set(CHOSEN[name]) <= set(offered)
    assert len(set(offered)) == len(offered)


def test_rewards_belong_to_the_version_that_sampled(ask: Ask) -> None:
    rows = ask(query("Reward by policy version"), CHOSEN).as_dicts()
    assert {row["policy_version"]: row["mean"] for row in rows if row["policy_version"].startswith(POLICY)} == {
        f"{POLICY}@0": 0.0,
        f"{POLICY}@1": 1.0,
        f"{POLICY}@2": 2.0,
    }


def test_staleness_is_counted_in_versions_published_by_then(ask: Ask) -> None:
    rows = ask(query("Versions behind, when calls were made"), CHOSEN).as_dicts()
    assert [(row["time"][11:16], row["mean"], int(row["max"])) for row in rows] == [
        ("12:05", 0, 0),
        ("12:35", 1, 1),  # version 0, after 1 was published
        ("13:05", 1, 1),  # version 1, after 2 was published
        ("13:10", 0, 0),
    ]
    sampled = ask(query("Versions that are being sampled from"), CHOSEN).as_dicts()
    assert [(int(row["version"]), int(row["n_calls"]), int(row["behind"])) for row in sampled] == [
        (2, 2, 0),
        (1, 2, 1),
        (0, 4, 2),
    ]


def test_token_rates_are_tokens_a_second(ask: Ask) -> None:
    rows = ask(query("Prompt tokens a second, by policy and agent"), CHOSEN).as_dicts()
    assert {row["series"] for row in rows} == {f"{POLICY} / {AGENT}"}
    assert [row["tokens"] for row in rows] == [6 / INTERVAL_S] * 4
    rows = ask(query("Response tokens a second, by policy and agent"), CHOSEN).as_dicts()
    assert [row["tokens"] for row in rows] == [4 / INTERVAL_S] * 4


def test_losses_say_what_was_lost(ask: Ask) -> None:
    dropped = ask(query("Samples used and dropped, by step"), CHOSEN).as_dicts()
    assert [(row["time"][11:16], row["verdict"], int(row["samples"])) for row in dropped] == [
        ("12:30", "error", 1),
        ("12:30", "used", 1),
        ("13:00", "error", 1),
        ("13:00", "used", 1),
    ]
    lost = ask(query("Spans and requests dropped, refused or lost")).as_dicts()
    assert [(row["time"][11:16], row["series"], row["lost"]) for row in lost] == [
        ("12:02", "sidecar_spans dropped_spool_full", 3),
        ("12:04", "sidecar_spans dropped_spool_full", 2),
        ("12:06", "collector_spool_losses refused_records logs", 1),
    ]


def test_the_counters_of_the_collector_are_those_that_it_shows(collector: Any, fetch: Callable[..., Any]) -> None:
    shown = fetch(f"{collector.otlp}/metrics").body.decode()
    asked = set(re.findall(r"'(tracegrad_collector_\w+)'", query("Spans and requests dropped, refused or lost")))
    assert asked == {"tracegrad_collector_requests_total", "tracegrad_collector_spool_losses"}
    assert all(f"# TYPE {name} " in shown for name in asked)


def test_the_json_is_what_the_generator_writes() -> None:
    spec = importlib.util.spec_from_file_location("generate", GRAFANA / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert DASHBOARDS.keys() == generate.DASHBOARDS.keys()
    for name in DASHBOARDS:
        written = (GRAFANA / "dashboards" / f"{name}.json").read_text()
        assert written == generate.text(name), "run python otel-config/grafana/generate.py"
    shown = {
        panel.query for one in generate.DASHBOARDS.values() for panels in one.sections.values() for panel in panels
    }
    kept = {file.stem for file in (GRAFANA / "queries").glob("*.sql")}
    assert kept == shown | {f"variable_{name}" for name in VARIABLES}


def test_panels_lie_side_by_side_and_use_the_provisioned_source() -> None:
    provisioned = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "tracegrad.yaml").read_text())
    (source,) = provisioned["datasources"]
    for dashboard in DASHBOARDS.values():
        taken: set[tuple[int, int]] = set()
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken
            assert place["x"] + place["w"] <= 24
            taken |= cells
            if panel["type"] != "row":
                assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}


def test_the_container_is_pinned_and_serves_loopback_only() -> None:
    (service,) = yaml.safe_load((GRAFANA / "compose.yaml").read_text())["services"].values()
    environment = service["environment"]
    assert re.fullmatch(r"grafana/grafana:\d+\.\d+\.\d+", service["image"])
    assert re.fullmatch(r"grafana-clickhouse-datasource@\d+\.\d+\.\d+", environment["GF_PLUGINS_PREINSTALL_SYNC"])
    assert (environment["GF_SERVER_HTTP_ADDR"], service["network_mode"], "ports" in service) == (
        "127.0.0.1",
        "host",
        False,
    )
    mounted = dict(volume.split(":")[:2] for volume in service["volumes"])
    assert all((GRAFANA / source).is_dir() for source in mounted)
    (provider,) = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "tracegrad.yaml").read_text())["providers"]
    assert provider["options"]["path"] == mounted["./dashboards"]
    asked = set(re.findall(r"\$([A-Z_]+)", (GRAFANA / "provisioning" / "datasources" / "tracegrad.yaml").read_text()))
    assert asked <= environment.keys()
