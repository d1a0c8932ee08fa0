"""A job that is killed, wherever it stands, neither trains on a sample twice nor skips one."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from training_doubles import CountingLearner
from training_world import World, changed

from tracegrad.errors import NothingToTrainError
from trainer.publisher import Publisher
from trainer.records import JobDirectory
from trainer.store import Store


class KilledError(BaseException):
    """Stands for SIGKILL: nothing that catches errors catches it."""


KILL_POINTS: dict[str, tuple[type | str, str, bool]] = {
    "before the update": ("learner", "update", False),
    "after the update": ("learner", "update", True),
    "before the record": (JobDirectory, "write", False),
    "before the checkpoint": ("learner", "save", False),
    "after the checkpoint": ("learner", "save", True),
    "before the weights": ("learner", "write_weights", False),
    "before publishing": (Publisher, "publish", False),
    "after publishing": (Publisher, "publish", True),
    "after the version's record": (Store, "record_version", True),
    "before the step's record": (Store, "record_step", False),
    "after the step's record": (Store, "record_step", True),
    "before pruning": (JobDirectory, "prune", False),
}


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_kill_neither_repeats_nor_skips_a_sample(point: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.agents.together():
        rollouts = [name for task in ("one", "two", "three") for name in world.agents.pair(task)]
    two_at_a_time = changed(world.config, "data", max_rollouts=2)
    world.train(two_at_a_time)
    owner, method, after = KILL_POINTS[point]
    with monkeypatch.context() as patch:
        if isinstance(owner, str):
            world.learners.prepare = lambda learner: patch.setattr(
                learner, method, killing(getattr(learner, method), after)
            )
        else:
            patch.setattr(owner, method, killing(getattr(owner, method), after))
        with pytest.raises(KilledError):
            world.train(two_at_a_time)
    world.learners.prepare = lambda learner: None

    try:
        while True:
            world.train(two_at_a_time)
    except NothingToTrainError:
        pass

    rows = world.samples()
    assert Counter(row["rollout_id"] for row in rows) == dict.fromkeys(rollouts, 2)
    assert len({row["span_id"] for row in rows}) == len(rows)
    saved = JobDirectory(world.config.engine.checkpoints, "train").newest_checkpoint()
    assert saved is not None
    seen = CountingLearner(saved).seen
    assert len(seen) == len(rows), "the newest weights have seen every row once"
    assert len({tuple(row) for row in seen}) == len(seen)
    versions = world.sql(
        "SELECT version FROM policies FINAL WHERE name = {p:String} ORDER BY version", p=world.agents.policy
    )
    assert [row["version"] for row in versions] == list(range(world.sidecar.version + 1))
    steps = world.sql(
        "SELECT from_version, to_version FROM train_steps FINAL WHERE policy = {p:String}", p=world.agents.policy
    )
    assert sorted(tuple(row.values()) for row in steps) == [(n, n + 1) for n in range(world.sidecar.version)]


def killing(method: Callable[..., Any], after: bool) -> Callable[..., Any]:
    def kill(*args: Any, **kwargs: Any) -> Any:
        if after:
            method(*args, **kwargs)
        raise KilledError

    return kill
