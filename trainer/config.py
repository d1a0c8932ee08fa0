"""`train.toml`: what one training job learns from, how it assigns credit, what it optimises, where it publishes."""

import json
import re
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)

from tracegrad.errors import SettingsError
from tracegrad.own_function import look_beside
from tracegrad.settings import Settings
from trainer.algorithm_config import AlgorithmConfig, CreditConfig, Section
from trainer.choices import ErrorType, OnFailure
from trainer.duration import duration_s
from trainer.since import parse_since

NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$"
"""Names that are parts of paths: never `..`."""

Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
"""Of an evaluation. Scores are at most 1e30: no sum of what is weighed, nor of its squares, overflows."""

RESERVED: dict[str, dict[str, Any]] = {
    "algorithm": {"kl_coef": 0.0, "correction": "none"},
    "engine": {"workers": 1, "lora_rank": 0},
    "publish": {"every": 1},
}
"""Settings that have a name but no choice yet, with the value that says what happens without them."""


class DataConfig(Section):
    """`[data]`: which finished, rewarded rollouts become one batch.

    `min_rollouts`: an update waits for at least so many; `max_rollouts`: it takes at most so many, oldest first.
    `settle`: how long a rollout must have been quiet, so that no span of it is still on its way; one without a root
    span is complete after this silence. Rollouts that settle are waited for, at most this long. `0s`: not at all.
    `group_by`: who is measured against each other, the rollouts of a task or, of these, the calls of each agent alone.
    `max_staleness`: in policy versions, between the one that sampled a call and the newest.
    `agents`: names or regular expressions of whole names; empty takes the calls of all. `on_failure`: what becomes of
    rollouts and calls that failed, by error type (see `trainer.failures`); one word is for every type that ends a
    rollout. `penalty`: what `penalize` adds to the reward. `reward_set`: a table of `[reward_set]`, or the name of an
    evaluation; empty takes all rewards as they are.
    """

    policy: str = Field(default="policy", pattern=NAME)
    agents: tuple[str, ...] = ()
    since: str = "last"
    min_rollouts: int = Field(default=1, ge=1)
    max_rollouts: int | None = Field(default=None, ge=1)
    group_by: Literal["task", "task-agent"] = "task"
    min_group: int = Field(default=2, ge=2)
    settle: str = "10s"
    max_staleness: int = Field(default=4, ge=0)
    on_failure: OnFailure | dict[ErrorType, OnFailure] = Field(default_factory=dict)
    penalty: float = Field(default=-1.0, le=0, allow_inf_nan=False)
    reward_set: str = ""

    @field_validator("agents")
    @classmethod
    def _agents_can_be_read(cls, agents: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in agents:
            try:
                re.compile(pattern)
            except re.error as error:
                raise SettingsError(
                    f"bad setting data.agents {pattern!r}: give names or regular expressions ({error})"
                ) from error
        return agents

    @field_validator("on_failure", mode="before")
    @classmethod
    def _errors_are_known(cls, given: Any) -> Any:
        unknown = [error for error in given if error not in get_args(ErrorType)] if isinstance(given, dict) else []
        if unknown:
            raise SettingsError(
                f"bad setting data.on_failure.{unknown[0]}: error types are {', '.join(get_args(ErrorType))}"
            )
        return given

    @field_validator("since")
    @classmethod
    def _since_can_be_read(cls, text: str) -> str:
        parse_since(text, time.time_ns())
        return text

    @field_validator("settle")
    @classmethod
    def _settle_can_be_read(cls, text: str) -> str:
        if duration_s(text) is None:
            raise SettingsError(f"bad setting data.settle {text!r}: give a duration like 500ms, 2s or 1m")
        return text

    @property
    def settle_s(self) -> float:
        """`settle` in seconds."""
        return duration_s(self.settle) or 0.0


class GateConfig(Section):
    """`[gate]`: what rows must prove before a job trains on them.

    `logprob_tolerance`: how far the engine's log-probabilities of a token may be from the trainer's where both have the
    same weights. `max_failed_share`: of the calls that a step looks at; if more of them fail, nothing is trained.
    """

    logprob_tolerance: float = Field(default=1e-2, gt=0, allow_inf_nan=False)
    max_failed_share: float = Field(default=0.5, ge=0, le=1)


class EngineConfig(Section):
    """`[engine]`: the model that verl trains. `checkpoints` holds what a killed job resumes from."""

    model: Path
    dtype: Literal["float32"] = "float32"
    lr: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    max_grad_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    max_prompt_tokens: int = Field(default=4096, ge=1)
    max_response_tokens: int = Field(default=2048, ge=1)
    merge_prefixes: bool = True
    micro_batch_rows: int = Field(default=32, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**32)
    threads: int | None = Field(default=None, ge=1)
    checkpoints: Path = Path(".tracegrad/checkpoints")
    keep_checkpoints: int = Field(default=2, ge=1)


class PublishConfig(Section):
    """`[publish]`: the sidecar's admin address, and the directory in which its engines get the new weights.

    Where they are not given they follow from the settings: `sidecar_admin_url` and `[sidecar] weights`.
    """

    sidecar: str = "http://127.0.0.1:8089"
    weights: Path = Path(".tracegrad/weights")
    keep_versions: int = Field(default=3, ge=1)
    admin_key: SecretStr | None = Field(default=None, exclude=True)
    """What the sidecar's admin port asks for; of the settings where `sidecar` is. Never recorded."""


class TrainConfig(Section):
    """A whole `train.toml`. `job` names it in the store; one job continues from its own checkpoints.

    `reward_set`: named choices of rewards, each a table of evaluation names (or patterns like `rule.*`) to weights.
    """

    job: str = Field(default="train", pattern=NAME)
    data: DataConfig = DataConfig()
    gate: GateConfig = GateConfig()
    reward_set: dict[str, dict[str, Weight]] = Field(default_factory=dict)
    credit: CreditConfig = CreditConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    engine: EngineConfig
    publish: PublishConfig = PublishConfig()

    def completed(self, settings: Settings) -> "TrainConfig":
        """This job, publishing where `settings` say, in so far as the job's own file does not."""
        follows: dict[str, Any] = {"sidecar": settings.sidecar_admin_url, "weights": settings.sidecar.weights}
        given = self.publish.model_dump(include=self.publish.model_fields_set)
        secret = settings.sidecar.admin_secret
        if self.publish.admin_key is not None:
            given["admin_key"] = self.publish.admin_key
        elif "sidecar" not in given and secret is not None:
            follows["admin_key"] = secret.read()
        return self.model_copy(update={"publish": PublishConfig(**(follows | given))})


def load(file: Path) -> TrainConfig:
    """Read and check a `train.toml`. Raises SettingsError with one line that names the setting."""
    try:
        values = tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise SettingsError(f"no training configuration at {file}") from error
    except OSError as error:
        raise SettingsError(f"the training configuration {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not TOML: {error}") from error
    _take_reserved(values, file)
    look_beside(file)  # for functions of the user's own
    try:
        loaded = TrainConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"bad setting {where} in {file}: {first['msg']}") from error
    if loaded.algorithm.name == "ppo":
        raise SettingsError(
            f'algorithm.name = "ppo" in {file} needs a critic, which is not available yet: use another estimator'
        )
    return loaded


def _take_reserved(values: dict[str, Any], file: Path) -> None:
    """Take the reserved settings out of `values`. Raises SettingsError where one has another value."""
    for section, settings in RESERVED.items():
        given = values.get(section)
        if not isinstance(given, dict):
            continue
        for name, only in settings.items():
            value = given.pop(name, only)
            if value != only or isinstance(value, bool) != isinstance(only, bool):
                raise SettingsError(
                    f"{section}.{name} = {json.dumps(value, default=str)} in {file} is not available yet: "
                    f"use {json.dumps(only)}"
                )
