"""Rollouts settle before they are taken: spans come late, and who runs agents by hand sends no root span."""

import logging
import threading
from collections import Counter

import pytest
from training_world import World, changed

from tracegrad.errors import NothingToTrainError
from trainer import run
from trainer.plan import SettlingError


def test_a_call_that_comes_after_root_and_reward_is_trained_on(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first, second = world.agents.pair("one", n_calls=1)
    late = threading.Timer(0.2, world.agents.late_call, (first, 1))
    late.start()
    with caplog.at_level(logging.INFO, "trainer.run"):
        (step,) = world.train(changed(world.config, "data", settle="6s"))
    late.join()
    assert step.metrics["n_rows"] == 3
    assert Counter(row["rollout_id"] for row in world.samples()) == {first: 2, second: 1}
    assert [record.message for record in caplog.records if "data.settle" in record.message] == [
        f"waiting at most data.settle=6s: 2 rollouts of policy {world.agents.policy!r} settle"
    ]


def test_a_group_is_not_torn_while_one_of_it_settles(world: World) -> None:
    with world.agents.together():
        world.agents.run("one", 1.0, age_s=7200)
        world.agents.run("one", 0.0)
    patient = changed(world.config, "data", settle="1h")
    with run.opened_job(patient, world.agents.collector.clickhouse, start_learner=world.learners) as job:
        job.start()
        with pytest.raises(SettlingError, match="1 rollouts"):
            job.step()
        assert len(job.plan(hurried=True).rollouts) == 1


def test_nobody_waits_for_too_few(world: World) -> None:
    world.agents.pair("one")
    with pytest.raises(NothingToTrainError, match=r"0 are ready of the 3 .*, 2 settling"):
        world.train(changed(world.config, "data", settle="1h", min_rollouts=3))


def test_without_a_root_span_silence_is_the_end(world: World) -> None:
    with world.agents.together():
        over = [world.agents.run("one", reward, finished=False, age_s=120) for reward in (1.0, 0.0)]
        failed = {"tracegrad.trainable": False, "tracegrad.untrainable.reason": "error"}
        over += [world.agents.run("one", 0.0, finished=False, age_s=120, **failed) for _ in range(2)]
        world.agents.run("one", None, finished=False, age_s=120)
        world.agents.run("two", 1.0, finished=False)
    config = changed(world.config, "data", settle="1m")
    with run.opened_job(config, world.agents.collector.clickhouse, start_learner=world.learners) as job:
        job.start()
        with pytest.raises(SettlingError, match="1 rollouts"):
            job.step()
        step = job.step(hurried=True)
        assert (step.metrics["n_rollouts"], step.metrics["n_rows"], step.metrics["dropped_no_calls"]) == (4, 4, 2)
        assert {row["rollout_id"] for row in world.samples()} == set(over)
        with pytest.raises(NothingToTrainError, match="0 are ready, 1 settling,"):
            job.step(hurried=True)
