"""What is chosen about a batch of rollouts before any of it is looked at: rewards, credit, advantages, failures."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from trainer.advantage import Options
from trainer.config import TrainConfig
from trainer.failures import FailurePolicy
from trainer.reward_sets import RewardSet, reward_set_named


@dataclass(frozen=True)
class Choices:
    """How a batch is judged; what a job without settings does, but for failures, which only a job has a policy for.

    `agents`: names or regular expressions of whole names; empty takes all. `failures` None: nothing is a failure.
    """

    scheme: str = "hierarchical"
    credit_gamma: float = 1.0
    estimator: str = "grpo"
    options: Options = field(default_factory=Options)
    singleton: Literal["drop", "batch"] = "drop"
    min_group: int = 2
    group_by: Literal["task", "task-agent"] = "task"
    agents: tuple[str, ...] = ()
    reward_set: RewardSet = field(default_factory=RewardSet)
    failures: FailurePolicy | None = None
    penalty: float = 0.0

    @classmethod
    def of_job(cls, config: TrainConfig) -> "Choices":
        """The choices of a `train.toml`."""
        algorithm, data = config.algorithm, config.data
        return cls(
            scheme=config.credit.scheme,
            credit_gamma=config.credit.gamma,
            estimator=algorithm.name,
            options=Options(algorithm.gamma, algorithm.lam, algorithm.step_weight, algorithm.f_norm),
            singleton=algorithm.singleton,
            min_group=data.min_group,
            group_by=data.group_by,
            agents=data.agents,
            reward_set=reward_set_named(data.reward_set, config.reward_set),
            failures=FailurePolicy.from_config(data),
            penalty=data.penalty,
        )

    @property
    def penalized_statuses(self) -> frozenset[str]:
        """How a rollout may end so that the penalty is all the reward it needs, beside others of its task."""
        return self.failures.penalized_statuses if self.failures is not None else frozenset()

    def takes(self, agent: str) -> bool:
        """Whether calls of `agent` are trained on."""
        return _takes(self.agents, agent)


@lru_cache(maxsize=4096)
def _takes(agents: tuple[str, ...], agent: str) -> bool:
    return not agents or any(agent == pattern or re.fullmatch(pattern, agent) for pattern in agents)
