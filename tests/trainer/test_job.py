"""A job on a real collector: what a step leaves behind, and what is refused."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from training_doubles import CountingLearner
from training_world import World, changed

from tracegrad.errors import NothingToTrainError, SettingsError, TracegradError, UnreachableError
from trainer import run
from trainer.gate_report import RefusedError
from trainer.job import Job


def test_a_step_trains_publishes_and_records(world: World) -> None:
    with world.agents.together():
        good, bad = world.agents.run("one", 1.0, n_calls=3), world.agents.run("one", 0.0, n_calls=1)
    (step,) = world.train()
    assert (step.from_version, step.to_version, step.updated) == (0, 1, True)
    assert len(world.learners.seen) == 4
    assert world.sidecar.version == 1

    rows = world.samples()
    assert Counter(row["rollout_id"] for row in rows) == {good: 3, bad: 1}
    assert all(row["used"] and row["drop_reason"] == "" and row["n_tokens"] == 2 for row in rows)
    advantages = {row["rollout_id"]: row["advantage"] for row in rows}
    assert advantages[good] == pytest.approx(0.7071, abs=1e-4)
    assert advantages[bad] == pytest.approx(-0.7071, abs=1e-4)

    (recorded,) = world.sql("SELECT * FROM train_steps FINAL WHERE policy = {p:String}", p=world.agents.policy)
    assert (recorded["job"], recorded["algorithm"], recorded["to_version"]) == ("train", "grpo", 1)
    metrics = json.loads(recorded["metrics"])
    assert metrics["reward_mean"] == pytest.approx(0.5)
    assert metrics["n_rollouts"] == 2
    assert metrics["n_rows"] == 4
    assert metrics["tokens"] == 8
    assert metrics["loss"] == 0.125
    assert metrics["logprob_max_diff"] == 0
    assert {"seconds_select", "seconds_update", "seconds_checkpoint", "seconds_publish"} <= set(metrics)

    base, first = world.sql(
        "SELECT * FROM policies FINAL WHERE name = {p:String} ORDER BY version", p=world.agents.policy
    )
    assert (base["version"], base["parent_version"], base["step_id"]) == (0, None, "")
    assert (first["version"], first["parent_version"], first["step_id"]) == (1, 0, step.step_id)
    assert world.sidecar.published == [(1, first["sha256"])]
    assert first["path"] == str(world.config.publish.weights / world.agents.policy / "1" / "model.safetensors")


def test_nothing_new_is_an_error_that_counts(world: World) -> None:
    with world.agents.together():
        world.agents.pair("one")
        world.agents.run("one", None)
        world.agents.run("one", 1.0, split="eval")
        world.agents.run("one", None, finished=False)
    world.train()
    with pytest.raises(NothingToTrainError, match=r"0 are ready, .* without a reward, .* 2 already trained"):
        world.train()


def test_a_step_waits_for_enough_rollouts_and_takes_whole_groups(world: World) -> None:
    waiting = changed(world.config, "data", min_rollouts=3, max_rollouts=3)
    first = world.agents.pair("one")
    with pytest.raises(NothingToTrainError, match="2 are ready of the 3"):
        world.train(waiting)
    assert world.learners.last is None
    world.agents.pair("two")
    world.train(waiting)
    assert {row["rollout_id"] for row in world.samples()} == set(first)


def test_later_rewarded_rollouts_are_not_skipped(world: World) -> None:
    world.agents.pair("one")
    world.train()
    with world.agents.together():
        world.agents.run("two", 1.0, version=1)
        world.agents.run("two", 0.0, version=0)
    (step,) = world.train()
    assert (step.from_version, step.to_version) == (1, 2)
    assert len(world.learners.seen) == 8
    assert step.metrics["staleness_max"] == 1
    assert step.metrics["logprob_max_diff"] == 0


def test_what_is_dropped_is_recorded_with_its_reason_and_consumed(world: World) -> None:
    with world.agents.together():
        reasons = {
            world.agents.run("one", 1.0, n_calls=1): "",
            world.agents.run("one", 0.0, n_calls=1): "",
            world.agents.run(
                "one", 0.0, 1, **{"tracegrad.trainable": False, "tracegrad.untrainable.reason": "no_logprobs"}
            ): "no_logprobs",
            world.agents.run(
                "one", 0.0, n_calls=1, **{"tracegrad.sampling": '{"temperature":0.5}'}
            ): "off_distribution",
            world.agents.run("one", 0.0, n_calls=1, version=9): "unknown_version",
            world.agents.run("one", 0.0, n_calls=1, version=None): "unknown_version",
            world.agents.run("two", 1.0, n_calls=1): "singleton_group",
            world.agents.run("three", 1.0, n_calls=1): "no_signal",
            world.agents.run("three", 1.0, n_calls=1): "no_signal",
            world.agents.run(
                "one", 0.0, 1, **{"tracegrad.trainable": False, "tracegrad.untrainable.reason": "error"}
            ): "no_calls",
        }
    (step,) = world.train()
    assert {row["rollout_id"]: row["drop_reason"] for row in world.samples()} == reasons
    assert step.metrics["dropped_no_signal"] == 2
    assert step.metrics["dropped_no_calls"] == 1
    assert step.metrics["n_rows"] == 2
    with pytest.raises(NothingToTrainError):
        world.train()


def test_who_died_before_a_call_counts_in_the_baseline_of_its_group(world: World) -> None:
    with world.agents.together():
        good = [world.agents.run("one", 1.0, n_calls=1) for _ in range(2)]
        died = world.agents.run("one", 0.0, n_calls=0)
        world.agents.run("one", 0.0, n_calls=1, **{"tracegrad.policy.name": "another"})
        world.agents.run("two", 0.0, n_calls=0)
    (step,) = world.train()
    assert (step.metrics["n_rollouts"], step.metrics["dropped_no_calls"]) == (3, 1)
    rows = {row["rollout_id"]: row for row in world.samples()}
    assert set(rows) == {*good, died}
    assert [rows[name]["advantage"] for name in good] == pytest.approx([0.5773] * 2, abs=1e-4)
    assert (rows[died]["used"], rows[died]["drop_reason"], rows[died]["reward"]) == (False, "no_calls", 0.0)
    with pytest.raises(NothingToTrainError, match=r"0 are ready, .* and 3 already trained"):
        world.train()


def test_without_signal_the_rollouts_are_consumed_and_the_version_stays(world: World) -> None:
    with world.agents.together():
        world.agents.run("one", 1.0)
        world.agents.run("one", 1.0)
    (step,) = world.train()
    assert (step.updated, step.from_version, step.to_version) == (False, 0, 0)
    assert world.learners.last is None, "the engine is not even started"
    assert world.sidecar.published == []
    assert {row["drop_reason"] for row in world.samples()} == {"no_signal"}
    world.agents.pair("two")
    (step,) = world.train()
    assert (step.number, step.to_version) == (2, 1)


def test_other_weights_than_the_trainers_are_refused(world: World) -> None:
    world.agents.pair("one")
    world.learners.prepare = lambda learner: setattr(learner, "logprob_gap", 0.02)
    with pytest.raises(RefusedError, match=r"4 of 4 calls \(100%\) fail, .* logprob_mismatch 4 .* by up to 0\.02\)"):
        world.train()
    assert world.learners.seen == []
    assert world.samples() == []
    tolerant = changed(world.config, "gate", logprob_tolerance=0.05)
    (step,) = world.train(tolerant)
    assert step.metrics["logprob_max_diff"] == pytest.approx(0.02, abs=1e-6)


def test_token_ids_that_the_model_lacks_are_refused(world: World) -> None:
    world.agents.pair("one", **{"tracegrad.response.token_ids": "[64,1]"})
    with pytest.raises(RefusedError, match=r"undecodable 4; .* engine\.model is not the model that vLLM serves"):
        world.train()
    assert world.learners.last is None, "the engine is not even started"


def test_a_broken_update_leaves_nothing_behind(world: World) -> None:
    world.agents.pair("one")
    world.learners.prepare = lambda learner: setattr(learner, "loss", float("nan"))
    with pytest.raises(TracegradError, match="loss = nan"):
        world.train()
    assert (world.sidecar.published, world.samples()) == ([], [])
    world.learners.prepare = lambda learner: None
    world.train()
    assert len(world.learners.seen) == 4


def test_what_no_checkpoint_holds_is_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.agents.pair("one")

    def full(learner: CountingLearner, directory: Path) -> None:
        raise OSError(28, "No space left on device")

    with run.opened_job(world.config, world.agents.collector.clickhouse, start_learner=CountingLearner.start) as job:
        job.start()
        with monkeypatch.context() as patch:
            patch.setattr(CountingLearner, "save", full)
            with pytest.raises(TracegradError, match="checkpoint cannot be written, so nothing was trained"):
                job.step()
        assert job.step().to_version == 1
        learner = job.load()
        assert isinstance(learner, CountingLearner)
        assert len(learner.seen) == 4


def test_an_engine_that_restarted_gets_the_newest_weights_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.agents.pair("one")
    world.train()
    world.sidecar.version = 0
    with pytest.raises(NothingToTrainError):
        world.train()
    assert world.sidecar.version == 1
    assert world.sidecar.published[0] == world.sidecar.published[1]
    assert "publishing them again policy=" in caplog.text
    world.sidecar.version = None
    with pytest.raises(NothingToTrainError):
        world.train()
    assert world.sidecar.version == 1


def test_an_operators_way_back_is_not_undone(world: World) -> None:
    world.agents.pair("one")
    world.train()
    world.sidecar.version, world.sidecar.rolled_back_from = 0, 1
    world.agents.pair("two", version=1)
    with pytest.raises(TracegradError, match=r"version 1 of policy .* was replaced by an older one \(version 0\)"):
        world.train()
    assert (world.sidecar.version, len(world.sidecar.published)) == (0, 1)
    world.sidecar.version, world.sidecar.rolled_back_from = 1, None
    (step,) = world.train()
    assert (step.to_version, world.sidecar.version) == (2, 2)


def test_what_was_learned_meanwhile_does_not_undo_it_either(world: World) -> None:
    world.agents.pair("one")
    world.train()
    world.agents.pair("two", version=1)
    world.learners.prepare = lambda learner: setattr(world.sidecar, "rolled_back_from", 1)
    with run.opened_job(world.config, world.agents.collector.clickhouse, start_learner=world.learners) as job:
        assert job.start() is None
        with pytest.raises(TracegradError, match="was replaced by an older one"):
            job.step()
        assert world.sidecar.version == 1
        world.sidecar.rolled_back_from = None
        assert job.start() is not None, "the step is saved, and finished then"
    assert world.sidecar.version == 2


def test_an_engine_ahead_of_the_checkpoints_is_refused(world: World) -> None:
    world.agents.pair("one")
    world.train()
    world.sidecar.version = 7
    with pytest.raises(TracegradError, match=r"serves version 7 .* newest checkpoint .* is version 1"):
        world.train()


def test_a_version_number_is_never_given_twice(world: World) -> None:
    world.agents.pair("one")
    world.train()
    shutil.rmtree(world.config.engine.checkpoints)
    with pytest.raises(TracegradError, match=r"version 1 of policy .* other weights"):
        world.train()
    world.sidecar.version = 0
    world.agents.pair("two")
    (step,) = world.train()
    assert (step.from_version, step.to_version, step.lineage) == (0, 2, (0, 2))


def test_another_base_model_or_policy_needs_another_job(world: World) -> None:
    world.agents.pair("one")
    world.train()
    (world.config.engine.model / "model.safetensors").write_bytes(b"others")
    with pytest.raises(SettingsError, match="started from other weights"):
        world.train()
    (world.config.engine.model / "model.safetensors").unlink()
    (world.config.engine.model / "config.json").unlink()
    with pytest.raises(SettingsError, match=r"engine\.model: no model"):
        world.train()


def test_two_trainers_of_one_job_exclude_each_other(world: World) -> None:
    with (
        run.opened_job(world.config, world.agents.collector.clickhouse, start_learner=world.learners),
        pytest.raises(TracegradError, match="already being trained by process"),
    ):
        world.train()


def test_no_sidecar_no_store_no_policy(world: World, free_port: Any) -> None:
    world.agents.pair("one")
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match="no sidecar at"):
        world.train(changed(world.config, "publish", sidecar=nobody))
    with pytest.raises(UnreachableError, match="no store at"):
        world.train(clickhouse=nobody)
    world.sidecar.policy = "another"
    with pytest.raises(SettingsError, match=r"no policy .* \(it has: another\)"):
        world.train()
    world.sidecar.policy, world.sidecar.version = world.agents.policy, None
    with pytest.raises(UnreachableError, match="is vLLM up"):
        world.train()
    assert world.learners.last is None


def test_old_checkpoints_and_weights_are_deleted(world: World) -> None:
    small = changed(changed(world.config, "engine", keep_checkpoints=1), "publish", keep_versions=2)
    for number in range(4):
        world.agents.pair("one", version=number)
        world.train(small)
    kept = sorted(path.name for path in (world.config.engine.checkpoints / "train").iterdir())
    assert kept == ["00000004", "00000004.gate.json", "00000004.gate.md", "00000004.json", "lock"]
    assert sorted(path.name for path in (world.config.publish.weights / world.agents.policy).iterdir()) == ["3", "4"]
    assert len(world.learners.seen) == 16


def test_an_unreachable_engine_after_the_update_loses_nothing(world: World) -> None:
    world.agents.pair("one")
    world.sidecar.refuse_with = 502
    with pytest.raises(UnreachableError, match=r"answered 502 .*: the engine does not answer; the step is saved"):
        world.train()
    world.sidecar.refuse_with = None
    (step,) = world.train()
    assert (step.to_version, world.sidecar.version) == (1, 1)
    assert len(world.learners.seen) == 4


def test_a_second_job_object_plans_the_same_without_changing_anything(world: World) -> None:
    world.agents.pair("one")
    with run.opened_job(
        world.config, world.agents.collector.clickhouse, exclusive=False, start_learner=world.learners
    ) as job:
        assert isinstance(job, Job)
        assert job.peek() is None
        assert job.plan_metrics(job.plan())["n_trained"] == 4
    assert world.learners.last is None
    assert not world.config.engine.checkpoints.exists()
    assert world.sql("SELECT * FROM policies WHERE name = {p:String}", p=world.agents.policy) == []
