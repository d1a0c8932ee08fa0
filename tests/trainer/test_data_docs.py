"""docs/data.md: every command on the page runs, and leaves the file that it names."""

import json
import shlex
from pathlib import Path

import pytest
from recorded_agents import RecordedAgents
from typer.testing import CliRunner

from tracegrad.cli import app
from trainer.export_verl import ABOUT

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "data.md").read_text()
COMMANDS = [line.strip() for line in TEXT.splitlines() if line.startswith("    tracegrad ")]
FOREIGN = {"gen_ai.operation.name": "chat", "input": "Hi", "output": "Ho"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: with the files that they import."""
    path = tmp_path_factory.mktemp("docs")
    (path / "exported").mkdir()
    for file in (path / "traces.json", path / "exported" / "a.json", path / "exported" / "b.json"):
        file.write_text(json.dumps(FOREIGN | {"name": str(file)}))
    return path


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, agents: RecordedAgents, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents.pair("one")
    _, *arguments = shlex.split(command.replace("--policy policy", f"--policy {agents.policy}"))
    expanded = [str(path) for one in arguments for path in (sorted(directory.glob(one)) if "*" in one else [one])]
    where = {"TRACEGRAD_OTLP": agents.collector.otlp, "TRACEGRAD_CLICKHOUSE": agents.collector.clickhouse}
    monkeypatch.chdir(directory)
    done = CliRunner().invoke(app, expanded, env=where, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    if "--out" in expanded:
        assert (directory / expanded[expanded.index("--out") + 1]).is_file()


def test_the_fields_of_a_line_and_of_a_batch_are_named() -> None:
    shown = TEXT[TEXT.index("```json") :].split("```")[1].removeprefix("json")
    assert set(json.loads(shown)) == {
        "messages", "tools", "rollout_id", "attempt", "task_id", "agent", "trace_id", "span_id", "model", "policy",
        "policy_version", "started_at", "reward",
    }  # fmt: skip
    assert {"rollout_id", "span_id", "agent"} <= set(ABOUT)
