"""The gate of a job: rows prove themselves one by one, a batch of which too much fails is refused, and all is told."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from recorded_agents import RecordedAgents
from recorded_tree import RecordedTree
from tokenizers import Tokenizer, models
from training_doubles import CountingLearner, ElsewhereLearner
from training_world import World, changed

from tracegrad.errors import NothingToTrainError
from trainer import run
from trainer.config import TrainConfig
from trainer.gate_report import RefusedError
from trainer.records import SampleRecord, StepRecord
from trainer.store import Store


def train(
    world: World, learner: type[CountingLearner] = CountingLearner, config: TrainConfig | None = None
) -> StepRecord:
    steps: list[StepRecord] = []
    chosen = config or world.config
    with run.opened_job(chosen, world.agents.collector.clickhouse, start_learner=learner.start) as job:
        run.train_once(job, chosen, 1, steps.append)
    return steps[0]


def report(world: World, number: int) -> tuple[dict[str, Any], str]:
    directory = world.config.engine.checkpoints / "train"
    told = json.loads((directory / f"{number:08}.gate.json").read_text())
    return told, (directory / f"{number:08}.gate.md").read_text()


def first_tokens(world: World, rollout_ids: Sequence[str]) -> dict[str, int]:
    rows = world.sql(
        "SELECT rollout_id, response_token_ids[1] AS token FROM llm_calls WHERE rollout_id IN {ids:Array(String)}",
        ids=list(rollout_ids),
    )
    return {row["rollout_id"]: row["token"] for row in rows}


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("gap", [0.5, float("nan")])
def test_a_row_with_other_log_probs_is_dropped_alone(world: World, merge: bool, gap: float) -> None:
    """Advantages are measured before: the one that is dropped stays in what the others are measured against."""
    with world.agents.together():
        bad, *others = rollouts = [world.agents.run("one", reward, n_calls=1) for reward in (0.0, 1.0, 1.0)]
    tokens = first_tokens(world, rollouts)
    learner = type("Learner", (ElsewhereLearner,), {"elsewhere": frozenset({tokens[bad]}), "gap": gap})
    step = train(world, learner, changed(world.config, "engine", merge_prefixes=merge))
    found = {row["rollout_id"]: row for row in world.samples()}
    assert [found[one]["drop_reason"] for one in (bad, *others)] == ["logprob_mismatch", "", ""]
    assert [found[one]["advantage"] for one in (bad, *others)] == pytest.approx([-1.1547, 0.5773, 0.5773], abs=1e-4)
    assert step.metrics["dropped_logprob_mismatch"] == 1
    assert step.metrics["n_rows"] == 2
    assert step.metrics["gate_failed_share"] == pytest.approx(1 / 3)
    assert step.metrics["logprob_max_diff"] == (0.5 if gap == 0.5 else 1e9)

    told, text = report(world, step.number)
    assert (told["looked_at"], told["failed"], told["recomputed"], told["mismatched"]) == (3, 1, 3, 1)
    assert told["reasons"] == {"logprob_mismatch": 1}
    (worst,) = told["failing"]
    assert (worst["rollout_id"], worst["span_id"]) == (bad, found[bad]["span_id"])
    assert worst["logprob_gap"] == step.metrics["logprob_max_diff"]
    assert text.startswith("# Gate of step 1, job train: passed\n")
    assert f"| logprob_mismatch | {bad} | {worst['span_id']} |" in text
    assert "Log-probs of 3 calls were computed again: 1 differ by more than 0.01" in text


def test_a_refused_batch_stays_as_it_is(world: World) -> None:
    with world.agents.together():
        good, bad = world.agents.pair("one", n_calls=1)
        world.agents.run("one", 0.0, n_calls=1, version=9)
    tokens = first_tokens(world, [good, bad])
    learner = type("Learner", (ElsewhereLearner,), {"elsewhere": frozenset({tokens[good]})})
    with pytest.raises(RefusedError) as refused:
        train(world, learner)
    told, text = report(world, 1)
    span_id = next(call["span_id"] for call in told["failing"] if call["reason"] == "logprob_mismatch")
    for part in (
        "2 of 3 calls (67%) fail, gate.max_failed_share is 0.5",
        "unknown_version 1",
        "logprob_mismatch 1",
        span_id,
        str(world.config.engine.checkpoints / "train" / "00000001.gate.md"),
    ):
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)
    assert text.startswith("# Gate of step 1, job train: refused\n")
    assert world.samples() == []
    assert world.sidecar.published == []

    step = train(world)
    assert (step.number, step.metrics["n_rows"]) == (1, 2)
    assert report(world, 1)[1].startswith("# Gate of step 1, job train: passed\n")


def test_what_cannot_be_compared_is_not_trusted_where_the_rest_is_anothers(world: World) -> None:
    world.agents.pair("one", n_calls=1)
    train(world)
    with world.agents.together():
        for version in (0, 0, 0, 1):
            world.agents.pair("two", n_calls=1, version=version)
    everything = type("Learner", (ElsewhereLearner,), {"elsewhere": frozenset(range(64))})
    with pytest.raises(
        RefusedError, match=r"2 of 8 calls \(25%\) fail, .* logprob_mismatch 2 .* check that vLLM serves"
    ):
        train(world, everything)


def test_a_hopeless_batch_starts_no_engine(world: World) -> None:
    world.agents.pair("one", version=9)
    with pytest.raises(RefusedError, match=r"unknown_version 4; .* other weights than this job's sampled them"):
        world.train()
    assert world.learners.last is None
    with (
        run.opened_job(world.config, world.agents.collector.clickhouse, start_learner=world.learners) as job,
        pytest.raises(RefusedError),
    ):
        run.watch(job, world.config, None, stop=threading.Event(), ready=lambda: None, report=lambda step: None)
    assert "Log-probs were not computed again." in report(world, 1)[1]
    (step,) = world.train(changed(world.config, "gate", max_failed_share=1.0))
    assert (step.updated, step.metrics["dropped_unknown_version"]) == (False, 4)
    assert report(world, 1)[0]["recomputed"] == 0
    with pytest.raises(NothingToTrainError):
        world.train()


def test_a_share_of_nothing_refuses_a_single_call(world: World) -> None:
    with world.agents.together():
        for number in range(3):
            world.agents.pair(f"task {number}")
        world.agents.run("task 1", 0.0, version=9, n_calls=1)
    with pytest.raises(RefusedError, match=r"1 of 13 calls"):
        world.train(changed(world.config, "gate", max_failed_share=0.0))
    (step,) = world.train()
    assert step.metrics["n_rows"] == 12


def test_groups_and_failures_are_no_failures_of_the_gate(world: World) -> None:
    with world.agents.together():
        world.agents.run("alone", 1.0)
        world.agents.run("flat", 1.0)
        world.agents.run("flat", 1.0)
    strict = changed(world.config, "gate", max_failed_share=0.0)
    (step,) = world.train(changed(strict, "data", on_failure={"truncation": "mask"}))
    told, text = report(world, 1)
    assert (told["failed"], told["reasons"]) == (0, {})
    assert told["other_drops"] == {"no_signal": 4, "singleton_group": 2}
    assert step.metrics["gate_failed_share"] == 0
    assert "## Calls that pass and are not trained on" in text

    with world.agents.together():
        for reward in (1.0, 0.0):
            world.agents.run("cut", reward, n_calls=1, **{"gen_ai.response.finish_reasons": [["length"]]})
            world.agents.run("cut", reward, n_calls=1)
    (step,) = world.train(changed(strict, "data", on_failure={"truncation": "mask"}))
    assert step.metrics["failed_truncation_mask"] == 2
    assert step.metrics["dropped_failed_truncation"] == 2
    told, text = report(world, 2)
    assert (told["looked_at"], told["failed"]) == (2, 0)
    assert told["failures"] == {"truncation": {"mask": 2}}
    assert "| truncation | mask | 2 |" in text


def test_a_token_that_the_tokenizer_lacks_does_not_decode(world: World) -> None:
    directory = world.config.engine.model
    Tokenizer(models.WordLevel({f"t{number}": number for number in range(60)}, unk_token="t0")).save(
        str(directory / "tokenizer.json")
    )
    with world.agents.together():
        world.agents.pair("one", n_calls=1)
        world.agents.run("one", 0.0, n_calls=1, **{"tracegrad.response.token_ids": "[61,1]"})
    (step,) = world.train()
    assert step.metrics["dropped_undecodable"] == 1
    assert report(world, 1)[0]["reasons"] == {"undecodable": 1}


def test_what_a_step_was_trained_on_is_not_trained_on_again(world: World) -> None:
    """Another job of the policy took the call as one of another attempt."""
    with world.agents.together():
        rollouts = [world.agents.run("one", reward, n_calls=1) for reward in (1.0, 0.0, 0.0)]
    spans = world.sql("SELECT span_id, trace_id FROM llm_calls WHERE rollout_id = {id:String}", id=rollouts[0])
    taken = SampleRecord(
        **spans[0], rollout_id=rollouts[0], attempt=1, agent="", reward=1.0, advantage=0.5, n_tokens=2, used=True,
        drop_reason="",
    )  # fmt: skip
    other = StepRecord(
        number=1, step_id="another", job="other", policy=world.agents.policy, from_version=0, to_version=0,
        updated=False, algorithm="grpo", config="{}", metrics={}, started_ns=1, ended_ns=2, lineage=(0,),
        base_sha256="", samples=(taken,),
    )  # fmt: skip
    store = Store(world.agents.collector.clickhouse)
    store.record_step(other, "{}")
    store.close()
    (step,) = world.train()
    assert step.metrics["dropped_trained_before"] == 1
    found = world.sql("SELECT * FROM train_samples FINAL WHERE step_id = {id:String}", id=step.step_id)
    assert {row["rollout_id"]: row["drop_reason"] for row in found} == {
        rollouts[0]: "trained_before",
        rollouts[1]: "",
        rollouts[2]: "",
    }
    (again,) = world.train(changed(world.config, "data", since="1h"))
    assert again.metrics["n_rows"] == 3, "who names a time asks for them again"


def test_without_a_reward_that_counts_nothing_is_trained(world: World) -> None:
    """The failure policy takes a call out, and the only reward with it."""
    for _ in range(2):
        one = RecordedTree(world.agents)
        agent = one.agent("writer")
        one.call(agent, [1], [2])
        one.reward(one.call(agent, [1, 2, 3], [4], **{"gen_ai.response.finish_reasons": ["length"]}), "style", 1.0)
        one.send()
    with pytest.raises(RefusedError, match=r"2 of 2 calls \(100%\) fail, .*no_reward 2; .* correct data\.reward_set"):
        world.train(changed(world.config, "data", on_failure={"truncation": "drop"}))
    assert report(world, 1)[0]["failures"] == {"truncation": {"drop": 2}}


def test_all_that_fail_are_told_to_programs_and_the_worst_to_people(world: World) -> None:
    with world.agents.together():
        for _ in range(6):
            world.agents.pair("one", n_calls=1, version=9)
        long = world.agents.run("one", 0.0, n_calls=1, version=9, **{"tracegrad.response.token_ids": "[1,2,3]"})
    with pytest.raises(RefusedError):
        world.train()
    told, text = report(world, 1)
    assert len({call["span_id"] for call in told["failing"]}) == 13
    assert text.count("| unknown_version | ") == 1 + 10
    assert "all 13 are in the file for programs" in text
    assert told["failing"][0]["rollout_id"] == long


def test_a_dry_run_tells_the_verdict(agents: RecordedAgents, world: World, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from tracegrad.cli import app

    with agents.together():
        agents.pair("one", n_calls=1)
        agents.run("one", 0.0, n_calls=1, version=9)
    config = world.config
    file = tmp_path / "train.toml"
    file.write_text(
        f'[data]\npolicy = "{agents.policy}"\nsettle = "0s"\n[gate]\nmax_failed_share = 0.5\n'
        f'[engine]\nmodel = "{config.engine.model}"\ncheckpoints = "{config.engine.checkpoints}"\n'
        f'[publish]\nsidecar = "{config.publish.sidecar}"\n'
    )
    where = {"TRACEGRAD_OTLP": agents.collector.otlp, "TRACEGRAD_CLICKHOUSE": agents.collector.clickhouse}

    def dry_run(*options: str) -> Any:
        return CliRunner().invoke(app, ["train", str(file), "--dry-run", *options], env=where)

    done = dry_run()
    assert done.exit_code == 0, done.output
    assert (
        "the gate passes it: 1 of 3 calls fail; log-probs are computed again only when the step is made" in done.output
    )
    told = json.loads(dry_run("--json").stdout)["gate"]
    assert (told["passed"], told["failed"], told["recomputed"]) == (True, 1, None)
    file.write_text(file.read_text().replace("0.5", "0.1"))
    done = dry_run()
    assert "the gate refuses it: 1 of 3 calls fail" in done.output
    assert isinstance(done.exception, RefusedError)
    assert not config.engine.checkpoints.exists()
