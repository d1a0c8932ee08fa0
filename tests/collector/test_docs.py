"""docs/collector.md: what it names is there, and what is there it names."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from collector import metrics
from tracegrad.cli import app
from tracegrad.settings import CollectorSettings, Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "collector.md").read_text()
INNER = {"schema_migrations"}
"""Tables of the collector's own, of no interest to who asks."""


def section(heading: str) -> str:
    """What stands under a heading, up to the next of its level."""
    _, _, behind = TEXT.partition(f"\n## {heading}\n")
    assert behind, heading
    return behind.partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """Names in the first column of tables."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|") and not line.startswith("|--")]
    return [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]


def commands() -> list[str]:
    """Indented lines that run `tracegrad`, without the environment before it."""
    lines = re.findall(r"^    (?:[A-Z_]+=\S+ )*(tracegrad .*)$", TEXT, re.MULTILINE)
    return lines + re.findall(r"`(tracegrad [^`]*)`", TEXT)


def test_settings_of_the_example_are_settings() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    chosen = Settings.model_validate(tomllib.loads(block)).collector
    defaults = CollectorSettings()
    for name in ("host", "otlp_http_port", "otlp_grpc_port", "clickhouse_port", "max_body_bytes", "store"):
        assert getattr(chosen, name) == getattr(defaults, name)
    assert (chosen.spool_bytes, chosen.spool_fsync) == (defaults.spool_bytes, defaults.spool_fsync)


def test_every_setting_is_explained() -> None:
    assert [name for name in CollectorSettings.model_fields if not re.search(rf"\b{name}\b", TEXT)] == []


@pytest.mark.parametrize("line", commands())
def test_every_command_and_option_is_there(line: str) -> None:
    _, *words = shlex.split(line)
    command: Any = typer.main.get_command(app)
    while words and not words[0].startswith("-") and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert getattr(command, "invoke_without_command", True), f"{line}: no such command"
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known | {"--help"}


def test_every_table_and_view_is_one_row_of_the_table(collector: Any) -> None:
    told = first_cells(section("Tables and views"))
    _, _, parts = section("Tables and views").partition("put together from: ")
    told += re.findall(r"`(\w+)`", parts)
    rows = collector.sql(
        "SELECT name FROM system.tables WHERE database = 'otel' AND engine NOT IN ('Null', 'MaterializedView')"
    ).split()
    assert len(told) == len(set(told))
    assert set(told) == set(rows) - INNER


def test_the_columns_of_views_are_there(collector: Any) -> None:
    """`name` of a view's row, behind the colon: its columns."""
    for line in section("Tables and views").splitlines():
        if match := re.match(r"\| `(\w+)` \|.*: (`.*`)", line):
            view = (
                f"{match[1]}({arguments[1]})" if (arguments := re.search(rf"`{match[1]}\((.*?)\)`", line)) else match[1]
            )
            told = collector.sql(f"DESCRIBE (SELECT * FROM {view}) FORMAT JSONEachRow")
            columns = {json.loads(row)["name"] for row in told.splitlines()}
            assert set(re.findall(r"`(\w+)`", match[2])) <= columns, match[1]


def test_sql_of_the_page_runs(collector: Any) -> None:
    statements = re.findall(r'tracegrad sql "([^"]+)"', TEXT) + re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
    assert statements
    for statement in statements:
        collector.sql(statement)


def test_every_metric_is_one_that_is_counted(collector: Any, fetch: Any) -> None:
    shown = fetch(f"{collector.otlp}/metrics").body.decode()
    declared = {f"{metrics.PREFIX}{name}" for name in re.findall(r"# HELP tracegrad_collector_(\w+)", shown)}
    named = set(re.findall(r"\btracegrad_collector_\w+", TEXT))
    assert named
    assert named <= declared


def test_links_and_files_are_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT) + re.findall(r"(otel-config/[\w./-]+\.ya?ml)", TEXT):
        assert ((ROOT / "docs" / target).resolve() if target.startswith("..") else ROOT / target).exists(), target
    for anchor in re.findall(r"\]\(#([\w-]+)\)", TEXT):
        headings = [line.lstrip("# ").lower() for line in TEXT.splitlines() if line.startswith("#")]
        assert anchor in [re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings]
