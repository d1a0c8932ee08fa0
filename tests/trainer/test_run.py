"""Watching for rollouts, and the command line."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_agents import Collector, RecordedAgents
from training_doubles import CountingLearner, SidecarDouble
from training_world import changed

from tracegrad.errors import SettingsError
from trainer import config as train_config
from trainer import run
from trainer.config import TrainConfig
from trainer.records import StepRecord


class Watch:
    """`run.watch` on a thread of its own."""

    def __init__(self, config: TrainConfig, clickhouse: str, max_steps: int | None = None) -> None:
        self.steps: list[StepRecord] = []
        self.stop, self.ready = threading.Event(), threading.Event()
        self.error: BaseException | None = None

        def body() -> None:
            try:
                with run.opened_job(config, clickhouse, start_learner=CountingLearner.start) as job:
                    run.watch(job, config, max_steps, stop=self.stop, ready=self.ready.set, report=self.steps.append)
            except BaseException as error:  # noqa: BLE001 - shown by the test's thread
                self.error = error

        self.thread = threading.Thread(target=body)
        self.thread.start()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert self.error is None, self.error
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.02)

    def join(self) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert self.error is None, self.error


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "POLL_S", 0.05)


def test_watching_trains_what_comes(agents: RecordedAgents, config: TrainConfig, sidecar: SidecarDouble) -> None:
    agents.pair("one")
    watch = Watch(config, agents.collector.clickhouse)
    watch.until(lambda: len(watch.steps) == 1)
    assert watch.ready.is_set()
    agents.pair("two", version=1)
    watch.until(lambda: sum(int(step.metrics["n_rollouts"]) for step in watch.steps) == 4)
    watch.join()
    assert sidecar.version == watch.steps[-1].to_version


def test_watching_survives_an_engine_that_is_away(
    agents: RecordedAgents, config: TrainConfig, sidecar: SidecarDouble, caplog: pytest.LogCaptureFixture
) -> None:
    sidecar.refuse_with = 502
    agents.pair("one")
    watch = Watch(config, agents.collector.clickhouse)
    watch.until(lambda: "waiting: the sidecar" in caplog.text)
    time.sleep(0.3)
    assert caplog.text.count("waiting: the sidecar") == 1, "said once, not at every poll"
    sidecar.refuse_with = None
    watch.until(lambda: len(watch.steps) == 1)
    watch.join()
    assert [version for version, _ in sidecar.published] == [1]


def test_watching_lets_rollouts_settle(agents: RecordedAgents, config: TrainConfig) -> None:
    began_ns = time.time_ns()
    agents.pair("one")
    watch = Watch(changed(config, "data", settle="1s"), agents.collector.clickhouse)
    watch.until(lambda: len(watch.steps) == 1)
    watch.join()
    assert watch.steps[0].started_ns - began_ns > 1e9
    assert watch.steps[0].metrics["n_rollouts"] == 2


def test_watching_stops_after_its_steps(agents: RecordedAgents, config: TrainConfig) -> None:
    agents.pair("one")
    watch = Watch(config, agents.collector.clickhouse, max_steps=1)
    watch.thread.join(60)
    assert not watch.thread.is_alive()
    assert len(watch.steps) == 1


def test_watching_needs_since_last(agents: RecordedAgents, config: TrainConfig) -> None:
    again = config.model_copy(update={"data": config.data.model_copy(update={"since": "7d"})})
    watch = Watch(again, agents.collector.clickhouse)
    watch.thread.join(60)
    assert isinstance(watch.error, SettingsError)


def test_an_age_trains_again_on_what_was_trained(agents: RecordedAgents, config: TrainConfig) -> None:
    again = config.model_copy(update={"data": config.data.model_copy(update={"since": "1h"})})
    agents.pair("one")
    steps: list[StepRecord] = []
    for _ in range(2):
        with run.opened_job(again, agents.collector.clickhouse, start_learner=CountingLearner.start) as job:
            run.train_once(job, again, 1, steps.append)
    assert [step.to_version for step in steps] == [1, 2]


def test_the_first_signal_stops_gently_the_second_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with run.stop_on_signals() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def train_toml(config: TrainConfig, tmp_path: Path) -> Path:
    file = tmp_path / "train.toml"
    file.write_text(
        f'[data]\npolicy = "{config.data.policy}"\nsettle = "{config.data.settle}"\n'
        f'[engine]\nmodel = "{config.engine.model}"\ncheckpoints = "{config.engine.checkpoints}"\n'
        f'[publish]\nsidecar = "{config.publish.sidecar}"\nweights = "{config.publish.weights}"\n'
    )
    assert train_config.load(file) == config
    return file


def command(collector: Collector, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tracegrad", "train", *arguments],
        env=os.environ | {"TRACEGRAD_CLICKHOUSE": collector.clickhouse},
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_new_is_one_line_and_exit_1(agents: RecordedAgents, train_toml: Path) -> None:
    done = command(agents.collector, str(train_toml))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("tracegrad: nothing new to train policy")
    assert "Traceback" not in done.stderr


def test_a_dry_run_says_what_a_step_would_learn_from(agents: RecordedAgents, train_toml: Path) -> None:
    agents.pair("one")
    done = command(agents.collector, str(train_toml), "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["dry_run"] is True
    assert answer["metrics"]["n_trained"] == 4
    assert "n_trained 4" in command(agents.collector, str(train_toml), "--dry-run").stdout


def test_a_step_without_signal_is_one_json_object(agents: RecordedAgents, train_toml: Path) -> None:
    agents.run("one", 1.0)
    done = command(agents.collector, str(train_toml), "--json")
    assert done.returncode == 0, done.stderr
    step = json.loads(done.stdout)
    assert (step["updated"], step["from_version"], step["to_version"]) == (False, 0, 0)
    assert step["metrics"]["dropped_singleton_group"] == 2


def test_a_bad_configuration_is_one_line(tmp_path: Path, agents: RecordedAgents) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[engine]\nmodel = "m"\nlr = -1\n')
    done = command(agents.collector, str(file))
    assert done.returncode == 1
    assert done.stderr.startswith("tracegrad: bad setting engine.lr in ")
    assert done.stderr.count("\n") == 1
