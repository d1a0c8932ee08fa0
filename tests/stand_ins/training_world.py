"""A job and all that it meets: recorded agents, a store, a sidecar's double, engine doubles."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorded_agents import RecordedAgents, Sql
from training_doubles import CountingLearner, SidecarDouble

from trainer import run
from trainer.config import TrainConfig
from trainer.records import StepRecord


class Learners:
    """Starts engine doubles, prepares them for what is to happen, and keeps the last one."""

    def __init__(self) -> None:
        self.last: CountingLearner | None = None
        self.prepare: Callable[[CountingLearner], None] = lambda learner: None

    def __call__(self, config: TrainConfig, resume_from: Path | None) -> CountingLearner:
        self.last = CountingLearner(resume_from)
        self.prepare(self.last)
        return self.last

    @property
    def seen(self) -> list[list[int]]:
        """What the last one's weights have learned from."""
        assert self.last is not None
        return self.last.seen


@dataclass
class World:
    """Agents, a store with what they did, a sidecar, and a job."""

    agents: RecordedAgents
    config: TrainConfig
    sidecar: SidecarDouble
    sql: Sql
    learners: Learners

    def train(self, config: TrainConfig | None = None, clickhouse: str | None = None) -> list[StepRecord]:
        """What `tracegrad train` does."""
        steps: list[StepRecord] = []
        chosen = config or self.config
        store = clickhouse or self.agents.collector.clickhouse
        with run.opened_job(chosen, store, start_learner=self.learners) as job:
            run.train_once(job, chosen, 1, steps.append)
        return steps

    def samples(self) -> list[dict[str, Any]]:
        """Recorded samples of recorded steps."""
        return self.sql(
            "SELECT s.* FROM train_samples AS s FINAL INNER JOIN train_steps AS t FINAL ON t.step_id = s.step_id "
            "WHERE t.policy = {policy:String} ORDER BY s.rollout_id, s.span_id",
            policy=self.agents.policy,
        )


def changed(config: TrainConfig, section: str, **values: object) -> TrainConfig:
    """The same job with other values in one section."""
    data = config.model_dump()
    data[section].update(values)
    return TrainConfig.model_validate(data)
