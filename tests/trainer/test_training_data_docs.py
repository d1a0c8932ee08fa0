"""docs/training-data.md: what it shows is what the commands say, its settings are settings, its tables are whole."""

import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from recorded_tree import RecordedTree
from training_doubles import CountingLearner, ElsewhereLearner
from training_world import World
from typer.testing import CliRunner, Result

from tracegrad.cli import app
from trainer import run
from trainer.choices import ErrorType
from trainer.config import TrainConfig
from trainer.failures import DEFAULTS
from trainer.gate_report import RefusedError
from trainer.merge_breaks import BreakClass
from trainer.reasons import REASONS

TEXT = (Path(__file__).parents[2] / "docs" / "training-data.md").read_text()
COMMANDS = re.findall(r"^    (tracegrad .*)$", TEXT, re.MULTILINE)
SETTINGS = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
SHOWN = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
ROLLOUT = "5d1f0c3e9a7b2468"

NOT_OF_ROWS = {"came_late", "eval", "running", "lost", "singleton_group", "no_signal"}
"""Reasons that say something of rollouts or groups, and nothing against a call."""

Cli = Callable[..., Result]


@pytest.fixture
def cli(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command where train.toml is the page's settings and those of the test's own job."""
    config = world.config
    own = {
        "data": f'policy = "{world.agents.policy}"\nsettle = "0s"',
        "engine": f'model = "{config.engine.model}"\ncheckpoints = "{config.engine.checkpoints}"',
        "publish": f'sidecar = "{config.publish.sidecar}"',
    }
    text = "\n".join(SETTINGS)
    for section, values in own.items():
        if f"[{section}]\n" in text:
            text = text.replace(f"[{section}]\n", f"[{section}]\n{values}\n")
        else:
            text += f"\n[{section}]\n{values}\n"
    (tmp_path / "train.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    where = {"TRACEGRAD_OTLP": world.agents.collector.otlp, "TRACEGRAD_CLICKHOUSE": world.agents.collector.clickhouse}
    return lambda *arguments: CliRunner().invoke(app, list(arguments), env=where)


def without_chance(text: str, policy: str = "policy") -> str:
    """Ids, times and directories are others each time, and columns as wide as they are."""
    text = text.replace(f"{policy}.", "").replace(policy, "policy")
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "AT", text)
    text = re.sub(r"\b[0-9a-f]{16}\b", "ID", text)
    text = re.sub(r"\S+(?=/train/\d{8}\.gate\.md)", "DIR", text)
    return re.sub(r"(?<=\S)  +", "  ", text).strip()


def conversation(world: World, first: int = 4, **values: Any) -> RecordedTree:
    """Two calls, the second of which continues the first. `values`: of the first."""
    tree = RecordedTree(world.agents, "capital-7")
    agent = tree.agent("writer")
    tree.call(agent, [1, 2], [first, 5], **values)
    tree.call(agent, [1, 2, first, 5, 6], [7, 8])
    return tree


def graded(tree: RecordedTree, reward: float) -> str:
    tree.reward(tree.root.span_id, "answer", reward)
    return tree.send()


def ended(reason: str) -> dict[str, Any]:
    return {"gen_ai.response.finish_reasons": [reason]}


def explained(world: World) -> str:
    """The rollout of the page, beside two others of its task."""
    for reward in (1.0, 0.0):
        graded(conversation(world), reward)
    tree = RecordedTree(world.agents, "capital-7")
    writer = tree.agent("writer")
    question = {"role": "user", "parts": [{"type": "text", "content": "Which is the capital?"}]}
    thought = {"type": "reasoning", "content": "I had better look."}
    search = {"type": "tool_call", "id": "call-1", "name": "search", "arguments": {"query": "capital"}}
    asked: list[Any] = [question]
    said: list[Any] = [{"role": "assistant", "parts": [thought, search]}]
    tree.call(writer, [1, 2], [3, 4], messages=(asked, said), **ended("tool_calls"))
    tool = tree.tool("search", writer, call_id="call-1", error="TimeoutError")
    asked += [{"role": "assistant", "parts": [search]}, {"role": "tool", "parts": [{"type": "tool_call_response"}]}]
    said = [{"role": "assistant", "parts": [{"type": "tool_call", "id": "call-2", "name": "ask", "arguments": {}}]}]
    tree.call(writer, [1, 2, 4, 5], [6, 7], messages=(asked, said), **ended("tool_calls"))
    critic = tree.agent("critic", tree.tool("ask", writer, call_id="call-2"))
    tree.call(critic, [8, 9], [10], **ended("stop"))
    tree.call(writer, [1, 2, 4, 5, 6, 7, 11], [12, 13], **ended("length"))
    tree.reward(tool, "rule.tool_failed", -0.1)
    tree.reward(critic, "style", 0.5)
    return graded(tree, 1.0)


def batch_of_the_report(world: World) -> None:
    for first, reward in ((4, 1.0), (4, 0.0), (9, 1.0)):
        graded(conversation(world, first), reward)
    graded(conversation(world, **{"tracegrad.policy.version": 9}), 0.0)
    conversation(world).send("timeout", "timeout")
    world.agents.run("capital-7", None, n_calls=1, finished=False, status="lost", age_s=7200)


def test_tables_are_whole() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| `(\w+)` \|$", TEXT, re.MULTILINE))
    assert {error: rows[error] for error in get_args(ErrorType)} == DEFAULTS
    named = set(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", TEXT, re.MULTILINE))
    told = {name for names in named for name in re.findall(r"\w+", names)}
    known = REASONS.keys() | set(get_args(BreakClass)) | set(get_args(ErrorType))
    assert told >= REASONS.keys() - NOT_OF_ROWS
    assert told >= set(get_args(BreakClass))
    assert told <= known


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_are_settings(settings: str) -> None:
    told = tomllib.loads(settings)
    read = TrainConfig.model_validate(told | {"engine": {"model": "m", **told.get("engine", {})}}).model_dump(
        mode="json"
    )
    for section, values in told.items():
        for name, value in values.items():
            assert read[section][name] == value


def test_a_rollout_is_explained_as_on_the_page(world: World, cli: Cli) -> None:
    done = cli("doctor", "--rollout", explained(world))
    assert done.exit_code == 0, done.output
    assert without_chance(done.stdout, world.agents.policy) == without_chance(SHOWN[2]), done.stdout


def test_a_report_is_the_one_on_the_page(world: World) -> None:
    batch_of_the_report(world)
    learner = type("Learner", (ElsewhereLearner,), {"elsewhere": frozenset({9})})
    with run.opened_job(world.config, world.agents.collector.clickhouse, start_learner=learner.start) as job:
        run.train_once(job, world.config, 1, lambda step: None)
    text = (world.config.engine.checkpoints / "train" / "00000001.gate.md").read_text()
    assert without_chance(text, world.agents.policy) == without_chance(SHOWN[1]), text


def test_a_refusal_is_the_one_on_the_page(world: World, cli: Cli) -> None:
    for reward in (1.0, 0.0):
        graded(conversation(world, **{"tracegrad.policy.version": 9}), reward)
    world.agents.pair("capital-7", n_calls=1, version=9)
    first = cli("train", "train.toml", "--dry-run")
    assert isinstance(first.exception, RefusedError)
    done = cli("train", "train.toml")
    assert done.exit_code == 1
    assert isinstance(done.exception, RefusedError), done.output
    said = f"tracegrad: {done.exception}"
    assert without_chance(said, world.agents.policy) == without_chance(" ".join(SHOWN[0].split())), said
    assert world.sidecar.published == []
    assert world.samples() == []


def test_what_is_told_to_be_run_runs(world: World, cli: Cli) -> None:
    rollout_id = explained(world)
    with run.opened_job(world.config, world.agents.collector.clickhouse, start_learner=CountingLearner.start) as job:
        run.train_once(job, world.config, 1, lambda step: None)
    graded(conversation(world), 1.0)
    graded(conversation(world), 0.0)
    assert len(COMMANDS) == 6
    for command in COMMANDS:
        _, *arguments = shlex.split(command.replace(ROLLOUT, rollout_id))
        done = cli(*arguments)
        assert done.exit_code == 0, (command, done.output, done.exception)
        assert done.stdout
