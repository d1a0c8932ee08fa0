"""Who failed and was given no reward: the penalty is its reward, beside others of its task that were graded."""

import pytest
from recorded_agents import RecordedAgents
from training_world import World, changed

from tracegrad.errors import NothingToTrainError
from trainer.batch_choices import Choices
from trainer.config import TrainConfig
from trainer.listing import Wanted, list_transitions
from trainer.since import Since
from trainer.store import Store


def listed(agents: RecordedAgents, config: TrainConfig) -> dict[str, tuple[float | None, str | None]]:
    """Of each rollout's first call, advantage and why it is not trained on, as `tracegrad transitions --job` tells."""
    store = Store(agents.collector.clickhouse)
    try:
        wanted = Wanted(Since(0, untrained_only=False), Choices.of_job(config), policy=agents.policy)
        lines = list(list_transitions(store, wanted))
    finally:
        store.close()
    return {line["rollout_id"]: (line["advantage"], line["drop_reason"]) for line in reversed(lines)}


def test_an_ungraded_timeout_is_measured_with_the_penalty(world: World) -> None:
    with world.agents.together():
        good = [world.agents.run("one", 1.0) for _ in range(2)]
        late = world.agents.run("one", None, status="timeout")
        never = world.agents.run("one", None, n_calls=0, status="failed")
    config = changed(world.config, "data", penalty=-0.5)
    foretold = listed(world.agents, config)
    (step,) = world.train(config)
    assert step.metrics["failed_timeout_penalize"] == 1
    assert step.metrics["failed_exception_penalize"] == 1
    rows = {row["rollout_id"]: row for row in world.samples()}
    assert set(rows) == {*good, late, never}
    assert (rows[late]["reward"], rows[late]["used"]) == (-0.5, True)
    deviation = 0.75**0.5  # of 1, 1, -0.5, -0.5
    assert rows[good[0]]["advantage"] == pytest.approx(0.75 / deviation, rel=1e-5)
    assert rows[late]["advantage"] == pytest.approx(-0.75 / deviation, rel=1e-5)
    for rollout_id in (*good, late):
        advantage, reason = foretold[rollout_id]
        assert (advantage, reason) == (pytest.approx(rows[rollout_id]["advantage"], rel=1e-6), None)
    with pytest.raises(NothingToTrainError, match="4 already trained"):
        world.train(config)


def test_it_waits_until_others_are_graded(world: World) -> None:
    with world.agents.together():
        ungraded = world.agents.run("one", None)
        late = world.agents.run("one", None, status="timeout")
    with pytest.raises(NothingToTrainError, match="0 are ready"):
        world.train()
    assert {reason for _, reason in listed(world.agents, world.config).values()} == {"no_reward"}
    with world.agents.together():
        good = world.agents.run("one", 1.0)
    (step,) = world.train()
    assert step.metrics["n_rollouts"] == 2
    assert {row["rollout_id"] for row in world.samples()} == {good, late}
    assert ungraded not in {row["rollout_id"] for row in world.samples()}


@pytest.mark.parametrize("action", ["keep", "mask", "drop"])
def test_without_a_penalty_it_has_no_reward(world: World, action: str) -> None:
    with world.agents.together():
        good = world.agents.pair("one")
        late = world.agents.run("one", None, status="timeout")
    config = changed(world.config, "data", on_failure={"timeout": action})
    assert listed(world.agents, config)[late] == (None, "no_reward")
    world.train(config)
    assert {row["rollout_id"] for row in world.samples()} == set(good)


def test_a_lost_rollout_can_be_penalized(world: World) -> None:
    with world.agents.together():
        good = world.agents.run("one", 1.0)
        lost = world.agents.run("one", None, finished=False, status="lost", age_s=2 * 3600)
    config = changed(world.config, "data", on_failure={"lost": "penalize"})
    assert listed(world.agents, world.config)[lost] == (None, "lost")
    foretold = listed(world.agents, config)
    (step,) = world.train(config)
    assert step.metrics["failed_lost_penalize"] == 1
    rows = {row["rollout_id"]: row for row in world.samples()}
    assert rows[lost]["reward"] == -1.0
    assert {name: row["advantage"] for name, row in rows.items()} == {
        name: pytest.approx(foretold[name][0], rel=1e-6) for name in (good, lost)
    }


def test_a_reward_set_waits_for_rewards_of_its_own(world: World) -> None:
    """What has other rewards only is neither trained on nor consumed: its reward may still come."""
    data = world.config.model_dump()
    data["data"]["reward_set"] = "mine"
    data["reward_set"] = {"mine": {"judge.*": 2.0}}
    config = TrainConfig.model_validate(data)
    with world.agents.together():
        good, bad = world.agents.pair("one")
        other = world.agents.run("one", 0.0)
    with pytest.raises(NothingToTrainError, match=r"data.reward_set = 'mine' takes no evaluation of the store.*answer"):
        world.train(config)
    world.agents.judge(good, "judge.style", 1.0)
    world.agents.judge(bad, "judge.style", 0.0)
    assert listed(world.agents, config)[other] == (None, "no_reward")
    world.train(config)
    assert {row["rollout_id"]: row["reward"] for row in world.samples()} == {good: 2.0, bad: 0.0}
    world.agents.judge(other, "judge.style", 1.0)
    with world.agents.together():
        later = world.agents.run("one", 0.0)
    world.agents.judge(later, "judge.style", 0.0)
    world.train(config)
    assert other in {row["rollout_id"] for row in world.samples()}
