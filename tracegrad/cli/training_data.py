"""Options that `tracegrad transitions` and `tracegrad export` share: which transitions, and how they are judged."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trainer.batch_choices import Choices
    from trainer.config import TrainConfig
    from trainer.listing import Wanted
    from trainer.store import Store

Rollout = Annotated[str | None, typer.Option("--rollout", help="Only this rollout.", metavar="ID")]
Task = Annotated[str | None, typer.Option("--task", help="Only rollouts of this task.", metavar="ID")]
Agent = Annotated[str | None, typer.Option("--agent", help="Only calls of this agent.", metavar="NAME")]
Policy = Annotated[str | None, typer.Option("--policy", help="Only calls of this policy.", metavar="NAME")]
SinceWhen = Annotated[
    str | None,
    typer.Option("--since", help="From a time or an age (7d) on; `last`: what no step has consumed.", metavar="WHEN"),
]
JobFile = Annotated[
    Path | None,
    typer.Option(
        "--job",
        help="Judge as this job would: a train.toml.",
        metavar="TRAIN_TOML",
        exists=True,
        dir_okay=False,
    ),
]
Credit = Annotated[
    str | None,
    typer.Option(
        "--credit",
        help="Credit assignment: identical, discounted, step, hierarchical (the default), or your own as "
        "package.module:function.",
        metavar="SCHEME",
    ),
]
Gamma = Annotated[float | None, typer.Option("--gamma", min=0, max=1, help="Discount per call (default: 1).")]
Advantage = Annotated[
    str | None,
    typer.Option(
        "--advantage",
        help="Advantage estimator: grpo (the default), dr_grpo, rloo, reinforce_plus_plus, "
        "reinforce_plus_plus_baseline, gigpo, or your own as package.module:function.",
        metavar="ESTIMATOR",
    ),
]
NoAdvantage = Annotated[bool, typer.Option("--no-advantage", help="Leave advantages out.")]
RewardSet = Annotated[
    str | None,
    typer.Option(
        "--reward-set",
        help="Count only these rewards: a table `reward_set.NAME` of the job, or the name of an evaluation.",
        metavar="NAME",
    ),
]


@dataclass(frozen=True)
class Selection:
    """The options as they were given; None where they were not."""

    rollout: str | None = None
    task: str | None = None
    agent: str | None = None
    policy: str | None = None
    since: str | None = None
    job: Path | None = None
    credit: str | None = None
    gamma: float | None = None
    advantage: str | None = None
    no_advantage: bool = False
    reward_set: str | None = None

    def check(self) -> None:
        """All that can be told without the store.

        Raises BadParameter for words that say nothing, SettingsError for a job's file or a function of the user's own.
        """
        from tracegrad.errors import SettingsError
        from trainer.advantage import estimator_named
        from trainer.algorithm_config import check_estimator, check_scheme
        from trainer.credit import scheme_named
        from trainer.since import parse_since

        self.job_config()
        try:
            if self.since is not None:
                parse_since(self.since, time.time_ns())
            scheme = check_scheme(self.credit, "--credit") if self.credit is not None else None
            estimator = check_estimator(self.advantage, "--advantage") if self.advantage is not None else None
        except SettingsError as error:
            raise typer.BadParameter(str(error)) from error
        if scheme is not None:
            scheme_named(scheme)
        if estimator is not None:
            estimator_named(estimator)

    def not_of_a_step(self) -> list[str]:
        """Those options that were given and say nothing of a step's own transitions."""
        given = {
            "--task": self.task is not None,
            "--policy": self.policy is not None,
            "--since": self.since is not None,
            "--no-advantage": self.no_advantage,
        }
        return [option for option, is_given in given.items() if is_given]

    def job_config(self) -> "TrainConfig | None":
        """The job's `train.toml`. Raises SettingsError."""
        from trainer import config

        return config.load(self.job) if self.job is not None else None

    def wanted(self, store: "Store") -> "Wanted":
        """What to list. Raises SettingsError and InputError where a choice is none."""
        from trainer.batch_choices import Choices
        from trainer.explain import gate_of_job
        from trainer.listing import GATE, Wanted
        from trainer.since import Since, parse_since

        config = self.job_config()
        return Wanted(
            since=Since(0, untrained_only=False) if self.since is None else parse_since(self.since, time.time_ns()),
            choices=self.changed(Choices() if config is None else Choices.of_job(config), config, store),
            gate=GATE if config is None else gate_of_job(config),
            advantages=not self.no_advantage,
            rollout_id=self.rollout,
            task_id=self.task,
            agent=self.agent,
            policy=config.data.policy if config is not None and self.policy is None else self.policy,
        )

    def changed(self, choices: "Choices", config: "TrainConfig | None", store: "Store") -> "Choices":
        """`choices` with what the options say instead. `config`: where reward sets are looked up first."""
        from dataclasses import replace

        from tracegrad.errors import InputError
        from trainer.algorithm_config import check_estimator, check_scheme
        from trainer.reward_sets import reward_set_named

        if self.credit is not None:
            choices = replace(choices, scheme=check_scheme(self.credit, "--credit"))
        if self.gamma is not None:
            choices = replace(choices, credit_gamma=self.gamma)
        if self.advantage is not None:
            choices = replace(choices, estimator=check_estimator(self.advantage, "--advantage"))
        if self.reward_set is not None:
            tables = config.reward_set if config is not None else {}
            if self.reward_set not in tables and self.reward_set not in (names := store.reward_names()):
                known = ", ".join([*tables, *names]) or "none yet"
                raise InputError(f"no reward set and no evaluation is called {self.reward_set!r}: there are {known}")
            choices = replace(choices, reward_set=reward_set_named(self.reward_set, tables))
        return choices
