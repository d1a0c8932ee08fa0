"""The demo's own parts: what is kept between runs, what is emptied, whose settings count, what the report says."""

import asyncio
import fcntl
import json
from pathlib import Path

import pytest
from rich.console import Console

from tracegrad import settings
from tracegrad.demo import report
from tracegrad.demo.commands import Commands
from tracegrad.demo.memory import PeakMemory
from tracegrad.demo.plan import Plan
from tracegrad.demo.run import _empty, _settings, agent_file
from tracegrad.errors import TracegradError


def test_a_kept_model_is_used_only_for_what_it_was_made_for() -> None:
    assert Plan(seed=1).model == Plan(seed=1, steps=3).model, "steps come after the warm start"
    assert Plan(seed=1).model != Plan(seed=2).model
    assert Plan(seed=1).model != Plan(seed=1, n_eval=121).model, "its demonstrations excluded other questions"


def test_the_users_configuration_is_not_the_demos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tracegrad.toml").write_text('[[model]]\nname = "*"\nupstream = "http://elsewhere.invalid"\n')
    plan = Plan(root=tmp_path / "demo")
    plan.run.mkdir(parents=True)
    file, chosen = _settings(plan, settings.Settings(), Console(quiet=True))
    (route,) = chosen.routes
    assert (route.policy, route.upstreams) == ("policy", (f"http://127.0.0.1:{chosen.vllm.port}",))
    assert settings.load(file, environ={}) == chosen
    assert chosen.sidecar.weights == plan.run / "weights"


def test_a_store_in_use_is_not_deleted(tmp_path: Path) -> None:
    store = tmp_path / "run" / "store"
    store.mkdir(parents=True)
    with (store / "collector.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TracegradError, match="a collector still serves"):
            _empty(tmp_path / "run")
        assert store.exists()
    _empty(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


async def test_a_failing_command_is_one_error_with_its_last_line(tmp_path: Path) -> None:
    config = tmp_path / "tracegrad.toml"
    config.write_text("")
    commands = Commands(config, {}, tmp_path / "log")
    with pytest.raises(TracegradError, match=r"`tracegrad reward` failed: .*absent\.jsonl"):
        await commands.run_json("reward", "--tasks", str(tmp_path / "absent.jsonl"), "--json")


async def test_a_background_command_that_dies_is_noticed(tmp_path: Path) -> None:
    config = tmp_path / "tracegrad.toml"
    config.write_text("")
    commands = Commands(config, {}, tmp_path / "log")
    async with commands.background("train", "absent.toml", "--watch") as check:
        with pytest.raises(TracegradError, match=r"`tracegrad train` stopped with status 1.*absent\.toml"):
            for _ in range(300):
                check()
                await asyncio.sleep(0.1)


def test_peak_memory_counts_this_process() -> None:
    with PeakMemory() as peak:
        held = bytearray(64 << 20)
    assert peak.bytes > len(held)


def test_the_agent_is_the_example() -> None:
    assert agent_file() == Path(__file__).resolve().parents[2] / "examples" / "calculator_agent.py"
    assert "tracegrad" not in agent_file().read_text(), "it knows nothing of us"


def test_the_report_states_what_was_measured(tmp_path: Path) -> None:
    measured = report.Measured(3, 0.25, 1.0, 120, 2, 3, 90.0, 3 << 30)
    rows = [report.StepRow(1, 0.3, 1e-6), report.StepRow(1, 0.0, None), report.StepRow(2, 0.6, 2e-6)]
    path = report.write(tmp_path, measured, rows, ["ONE", "TWO", "THREE"], Path("the/store"))
    text = path.read_text()
    assert "| gain | +75.0 points on 120 questions" in text
    assert "| 1 | 0.000 | not compared |" in text
    assert "| peak memory of all processes | 3.0 GiB |" in text
    for question, answer in zip(report.QUESTIONS, ("ONE", "TWO", "THREE"), strict=True):
        assert question.words in text
        assert question.sql in text
        assert answer in text
    assert json.loads((tmp_path / "report.json").read_text()) == {
        "seed": 3,
        "accuracy_before": 0.25,
        "accuracy_after": 1.0,
        "n_eval": 120,
        "policy_versions": 2,
        "steps": 3,
        "seconds": 90.0,
        "peak_memory_bytes": 3 << 30,
    }
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_intervals_are_wilsons() -> None:
    """Against the textbook's example of Wilson's interval, and at the ends of the scale."""
    assert report.interval(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    low, high = report.interval(1.0, 120)
    assert (low, high) == (pytest.approx(0.969, abs=1e-3), 1.0)
    assert report.interval(0.0, 120)[0] == 0.0
