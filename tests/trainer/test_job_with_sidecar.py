"""A job and the real sidecar understand each other; only the engines on both sides are doubles."""

import asyncio
from pathlib import Path

import pytest
from fake_vllm import FakeVllm
from sidecar_harness import listening
from training_doubles import CountingLearner
from training_world import World, changed

from sidecar.server import serve
from tracegrad.errors import NothingToTrainError, UnreachableError
from tracegrad.settings import Settings
from trainer import run
from trainer.config import TrainConfig
from trainer.records import StepRecord


def train(config: TrainConfig, clickhouse: str) -> list[StepRecord]:
    steps: list[StepRecord] = []
    with run.opened_job(config, clickhouse, start_learner=CountingLearner.start) as job:
        run.train_once(job, config, 1, steps.append)
    return steps


async def test_weights_reach_the_engine_and_reach_it_again(world: World, tmp_path: Path) -> None:
    fake = FakeVllm()
    world.agents.pair("one")
    async with listening(fake.application()) as fake.url:
        route = {"name": "policy", "upstream": fake.url, "policy": world.agents.policy}
        settings = Settings.model_validate(
            {
                "otlp": world.agents.collector.otlp,
                "sidecar": {"port": 0, "admin_port": 0, "weights": tmp_path / "weights", "data": tmp_path / "data"},
                "model": [route],
            }
        )
        async with serve(settings, shutdown_s=1.0) as ports:
            admin = f"http://127.0.0.1:{ports.admin_port}"
            config = changed(world.config, "publish", sidecar=admin)
            clickhouse = world.agents.collector.clickhouse

            (step,) = await asyncio.to_thread(train, config, clickhouse)
            assert (step.to_version, fake.version) == (1, "1")

            fake.version = "default"  # it was restarted, with the weights it was started with: the sidecar sees to it
            while fake.version != "1":  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            with pytest.raises(NothingToTrainError):
                await asyncio.to_thread(train, config, clickhouse)
            assert fake.version == "1"

            world.agents.pair("two", version=1)
            fake.fail_step = "update_weights"
            with pytest.raises(UnreachableError, match="answered 502 to POST"):
                await asyncio.to_thread(train, config, clickhouse)
            fake.fail_step = None
            (step,) = await asyncio.to_thread(train, config, clickhouse)
            assert (step.from_version, step.to_version, fake.version) == (1, 2, "2")
