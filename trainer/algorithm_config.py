"""`[credit]` and `[algorithm]` of `train.toml`."""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tracegrad.errors import SettingsError
from tracegrad.own_function import is_own
from trainer.choices import (
    AGGREGATIONS,
    ESTIMATOR_NAMES,
    ESTIMATORS_WITH,
    LOSSES,
    ROLLOUT_MEAN,
    SCHEME_NAMES,
    UNSUPPORTED_LOSSES,
)


class Section(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _known_or_own(name: str, known: Iterable[str], setting: str) -> str:
    if name not in known and not is_own(name):
        raise SettingsError(
            f"bad setting {setting} {name!r}: choose one of {', '.join(known)}, or name a function of your own as "
            "package.module:function"
        )
    return name


def check_scheme(name: str, setting: str) -> str:
    """The name of a credit scheme. Raises SettingsError, which names `setting`."""
    return _known_or_own(name, SCHEME_NAMES, setting)


def check_estimator(name: str, setting: str) -> str:
    """The name of an advantage estimator. Raises SettingsError, which names `setting`."""
    return _known_or_own(name, ESTIMATOR_NAMES, setting)


class CreditConfig(Section):
    """`[credit]`: how the rewards of a rollout are shared by its calls (Level 1). `gamma`: discount per call."""

    scheme: str = "hierarchical"
    gamma: float = Field(default=1.0, ge=0, le=1)

    @field_validator("scheme")
    @classmethod
    def _scheme_is_known(cls, name: str) -> str:
        return check_scheme(name, "credit.scheme")


class AlgorithmConfig(Section):
    """`[algorithm]`: advantages, loss and its aggregation (Levels 2 and 3). `loss` is one of verl's policy losses.

    `gamma`, `lam`: per token, of the estimators that look at tokens. `step_weight`, `f_norm`: of GiGPO, see
    `trainer.measured.Options`.
    `singleton`: what a group of one is measured against, nothing (`drop`) or the whole batch.
    """

    name: str = "grpo"
    gamma: float = Field(default=1.0, ge=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    step_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    f_norm: Literal["std", "none"] = "std"
    singleton: Literal["drop", "batch"] = "drop"
    loss: str = "vanilla"
    aggregation: str = ROLLOUT_MEAN
    clip_low: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    clip_high: float = Field(default=0.28, ge=0, allow_inf_nan=False)
    epochs: int = Field(default=1, ge=1)

    @field_validator("name")
    @classmethod
    def _estimator_is_known(cls, name: str) -> str:
        return check_estimator(name, "algorithm.name")

    @field_validator("loss")
    @classmethod
    def _loss_is_known(cls, name: str) -> str:
        if name not in LOSSES:
            why = f" ({UNSUPPORTED_LOSSES[name]})" if name in UNSUPPORTED_LOSSES else ""
            raise SettingsError(f"algorithm.loss = {name!r} cannot be used{why}: choose one of {', '.join(LOSSES)}")
        return name

    @model_validator(mode="after")
    def _aggregation_fits(self) -> "AlgorithmConfig":
        if self.aggregation not in AGGREGATIONS:
            known = ", ".join(AGGREGATIONS)
            raise SettingsError(f"algorithm.aggregation = {self.aggregation!r} is not known: choose one of {known}")
        if self.loss == "sapo" and self.aggregation != "seq-mean-token-mean":
            raise SettingsError(
                'algorithm.loss = "sapo" needs aggregation = "seq-mean-token-mean": verl knows no other'
            )
        return self

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> "AlgorithmConfig":
        for option, estimators in ESTIMATORS_WITH.items():
            chosen = getattr(self, option)
            if self.name in ESTIMATOR_NAMES and self.name not in estimators and chosen != _default(self, option):
                raise SettingsError(
                    f"algorithm.{option} = {chosen!r} has no effect with algorithm.name = {self.name!r}, only with "
                    f"{', '.join(estimators)}: leave it out"
                )
        return self


def _default(section: Section, name: str) -> Any:
    return type(section).model_fields[name].default
