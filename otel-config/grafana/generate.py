"""Writes dashboards/*.json from the queries beside it: `python otel-config/grafana/generate.py`.

The queries are the dashboards' substance and are kept readable, one file each; what is here is where each is shown, as
what, and in which unit. The JSON is checked in because Grafana reads it; a test compares the two.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATASOURCE = {"type": "grafana-clickhouse-datasource", "uid": "tracegrad"}
WIDTH = 24
"""Of Grafana's grid."""
TIME_SERIES, TABLE = 0, 1
"""How the plug-in shapes an answer: series by the text column, or the rows as they are."""


@dataclass(frozen=True)
class Panel:
    """`query`: a file of `queries/`. `shape`: as `drawing` names it. `units`: of single fields."""

    query: str
    title: str
    shape: str
    width: int = 12
    unit: str = "short"
    units: Mapping[str, str] = field(default_factory=dict)
    about: str = ""
    height: int = 8


@dataclass(frozen=True)
class Variable:
    """A choice at the top, filled by `queries/variable_NAME.sql`. Without `chosen`, all is chosen."""

    name: str
    label: str
    chosen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dashboard:
    """`sections`: heading -> panels, which flow from left to right."""

    uid: str
    title: str
    about: str
    variables: Sequence[Variable]
    sections: Mapping[str, Sequence[Panel]]
    since: str = "now-6h"


POLICY, TASK, AGENT = Variable("policy", "Policy"), Variable("task", "Task"), Variable("agent", "Agent")
METRIC = Variable("metric", "Metrics", chosen=("loss", "grad_norm", "ppo_kl", "clip_fraction"))

DASHBOARDS = {
    "rollouts": Dashboard(
        "tracegrad-rollouts",
        "tracegrad: rollouts and rewards",
        "What was run, how it ended, and what it earned.",
        [TASK],
        {
            "Rollouts": [
                Panel("rollouts_by_status", "Attempts by status", "numbers", width=24, height=4),
                Panel("rollouts_over_time", "Attempts begun, by status", "bars"),
                Panel("rollout_duration", "Duration of ended attempts", "lines", unit="s"),
                Panel(
                    "rollouts_by_agent",
                    "Agents",
                    "table",
                    width=24,
                    units={"succeeded": "percentunit", "median_seconds": "s"},
                    about="An attempt of several agents counts for each of them.",
                ),
            ],
            "Rewards": [
                Panel("rewards_over_time", "Mean score by reward", "lines"),
                Panel(
                    "rewards_by_version",
                    "Reward by policy version",
                    "columns",
                    about="Mean, 10% and 90% of the rollouts that each version sampled.",
                ),
                Panel("rewards_distribution", "Distribution of rewards", "histogram"),
                Panel(
                    "rewards_by_task",
                    "Tasks, hardest first",
                    "table",
                    about="A spread of 0: all attempts earned the same, so that a group of them teaches nothing.",
                ),
            ],
            "Newest": [
                Panel("rollouts_newest", "Newest attempts", "table", width=24, height=12, units={"seconds": "s"}),
            ],
        },
    ),
    "training": Dashboard(
        "tracegrad-training",
        "tracegrad: policies and training",
        "Which weights there are, what each step did, how old the data was, and what was not learned from.",
        [POLICY, METRIC],
        {
            "Policies": [
                Panel("policies_newest", "Newest versions", "table", width=8, units={"seconds_since": "s"}),
                Panel("policies_published", "Published versions", "table", width=16),
            ],
            "Steps": [
                Panel("train_reward", "Mean reward of each step's rollouts", "lines"),
                Panel("train_metrics", "Metrics of each step", "lines", about="Choose which at the top."),
                Panel("train_seconds", "Where each step's time went", "bars", width=24, unit="s"),
            ],
            "Staleness": [
                Panel("staleness_trained", "Versions behind, of what was trained on", "lines"),
                Panel(
                    "staleness_sampled",
                    "Versions behind, when calls were made",
                    "lines",
                    about="Against the newest version published by then. Above 0 for long: a replica is not updated.",
                ),
                Panel("staleness_versions", "Versions that are being sampled from", "table", width=24),
            ],
            "Losses": [
                Panel(
                    "samples_by_verdict",
                    "Samples used and dropped, by step",
                    "bars",
                    width=24,
                    about="Each sampled choice that a step considered: used, or the reason why not.",
                ),
            ],
        },
        since="now-24h",
    ),
    "calls": Dashboard(
        "tracegrad-calls",
        "tracegrad: calls, tokens and losses",
        "What the models were asked, how fast they answered, and what cannot be trained on.",
        [POLICY, AGENT],
        {
            "Calls": [
                Panel(
                    "trainable_share",
                    "Calls of policies",
                    "numbers",
                    width=24,
                    height=4,
                    units={"trainable": "percentunit", "failed": "percentunit"},
                ),
                Panel(
                    "prompt_token_rate", "Prompt tokens a second, by policy and agent", "lines", unit="suffix: tok/s"
                ),
                Panel(
                    "response_token_rate",
                    "Response tokens a second, by policy and agent",
                    "lines",
                    unit="suffix: tok/s",
                ),
                Panel("call_rate", "Calls a second, by model", "lines", unit="reqps"),
                Panel("call_duration", "Duration of calls, by model", "lines", unit="s"),
                Panel("finish_reasons", "Finish reasons", "bars", width=24),
            ],
            "Losses": [
                Panel(
                    "untrainable_reasons",
                    "Untrainable choices of policies, by reason",
                    "bars",
                    about="What each reason means: docs/sidecar.md, under 'What is exact, and what is not'.",
                ),
                Panel("call_errors", "Calls that failed, by error", "bars"),
                Panel(
                    "telemetry_lost",
                    "Spans and requests dropped, refused or lost",
                    "bars",
                    width=24,
                    about="From the /metrics pages of sidecar and collector, where an official Collector with "
                    "otel-config/collector.yaml reads them. Empty otherwise; with it, empty is what you want.",
                ),
            ],
        },
    ),
}


def sql(name: str) -> str:
    """The query without its comment, which is for readers of the file."""
    lines = (HERE / "queries" / f"{name}.sql").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def target(query: str, shape: int) -> dict[str, Any]:
    """What the plug-in runs."""
    return {
        "datasource": DATASOURCE,
        "editorType": "sql",
        "format": shape,
        "queryType": "timeseries" if shape == TIME_SERIES else "table",
        "rawSql": sql(query),
        "refId": "A",
    }


def drawing(panel: Panel) -> tuple[str, int, dict[str, Any], dict[str, Any]]:
    """Grafana's panel type, the shape of the answer, the panel's options and those of its fields."""
    legend = {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"], "showLegend": True}
    several = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    match panel.shape:
        case "lines":
            return "timeseries", TIME_SERIES, several, {"drawStyle": "line", "showPoints": "auto", "spanNulls": True}
        case "bars":
            stacked = {"drawStyle": "bars", "fillOpacity": 80, "stacking": {"mode": "normal", "group": "A"}}
            return "timeseries", TIME_SERIES, several, stacked
        case "numbers":
            reduce = {"calcs": ["lastNotNull"], "fields": "/.*/", "values": False}
            return "stat", TABLE, {"reduceOptions": reduce, "colorMode": "value", "graphMode": "none"}, {}
        case "table":
            return "table", TABLE, {"showHeader": True, "cellHeight": "sm"}, {"filterable": True}
        case "columns":
            return "barchart", TABLE, {"orientation": "vertical", "xTickLabelSpacing": 100, "legend": legend}, {}
        case "histogram":
            return "histogram", TABLE, {"bucketCount": 30, "legend": {"showLegend": False}}, {}
    raise ValueError(f"{panel.query}: no such shape as {panel.shape}")


def panels(sections: Mapping[str, Sequence[Panel]]) -> list[dict[str, Any]]:
    """All panels in their places, each section under its heading."""
    placed: list[dict[str, Any]] = []
    top = 0
    for heading, members in sections.items():
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        placed.append(
            {"type": "row", "title": heading, "id": len(placed) + 1, "collapsed": False, "panels": [], "gridPos": place}
        )
        top, left, tallest = top + 1, 0, 0
        for panel in members:
            if left + panel.width > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            kind, shape, options, custom = drawing(panel)
            placed.append(
                {
                    "type": kind,
                    "title": panel.title,
                    "description": panel.about,
                    "id": len(placed) + 1,
                    "datasource": DATASOURCE,
                    "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
                    "options": options,
                    "fieldConfig": {
                        "defaults": {"unit": panel.unit, "custom": custom},
                        "overrides": [
                            {
                                "matcher": {"id": "byName", "options": name},
                                "properties": [{"id": "unit", "value": unit}],
                            }
                            for name, unit in panel.units.items()
                        ],
                    },
                    "targets": [target(panel.query, shape)],
                }
            )
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return placed


def variable(chosen: Variable) -> dict[str, Any]:
    """A choice of several values, filled anew when the time range changes."""
    all_of_them = {"text": ["All"], "value": ["$__all"]}
    some = {"text": list(chosen.chosen), "value": list(chosen.chosen)}
    query = sql(f"variable_{chosen.name}")
    return {
        "type": "query",
        "name": chosen.name,
        "label": chosen.label,
        "datasource": DATASOURCE,
        "definition": query,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": not chosen.chosen,
        "current": some if chosen.chosen else all_of_them,
        "sort": 0,
    }


def dashboard(shown: Dashboard) -> dict[str, Any]:
    """The JSON that Grafana's provisioning reads."""
    link = {"type": "dashboards", "title": "tracegrad", "tags": ["tracegrad"], "asDropdown": True, "keepTime": True}
    return {
        "uid": shown.uid,
        "title": shown.title,
        "description": shown.about,
        "tags": ["tracegrad"],
        "schemaVersion": 39,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": shown.since, "to": "now"},
        "links": [link],
        "templating": {"list": [variable(one) for one in shown.variables]},
        "panels": panels(shown.sections),
    }


def text(name: str) -> str:
    """The file `dashboards/NAME.json`."""
    return json.dumps(dashboard(DASHBOARDS[name]), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in DASHBOARDS:
        (HERE / "dashboards" / f"{name}.json").write_text(text(name))
