"""The Grafana dashboards: every panel's query runs on a store with rollouts, rewards, policies and steps, and answers
what the panel draws. Macros and variables are expanded here as Grafana's ClickHouse plug-in 4.x does it."""

import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_macros import INTERVAL_S, expand
from grafana_store import AGENT, BEGIN, POLICY, TASK, seed

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
CHOSEN = {"policy": (POLICY,), "agent": (AGENT,), "task": (TASK,), "metric": ("loss", "grad_norm")}
EVERYTHING = {"policy": (), "agent": (), "task": (), "metric": CHOSEN["metric"]}
"""No value: all are chosen."""
NUMBER = re.compile(r"(Nullable\()?(U?Int\d+|Float\d+|Bool)\)?")
TEXT = {"String", "LowCardinality(String)"}


@dataclass(frozen=True)
class Answer:
    columns: dict[str, str]
    rows: list[list[Any]]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def ask(collector: Any) -> Ask:
    """What a panel or variable gets, asked by the user that only reads, in the two hours from `since` on."""
    seed(collector)
    reader = collector.client(username="default", password="")

    def run(sql: str, chosen: Mapping[str, tuple[str, ...]] = EVERYTHING, since: datetime = BEGIN) -> Answer:
        statement = expand(sql, chosen, since, since + timedelta(hours=2))
        answer = json.loads(reader.raw_query(statement, fmt="JSONCompact"))
        return Answer({column["name"]: column["type"] for column in answer["meta"]}, answer["data"])

    return run


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
