"""What each kind of rule can be told in `[rules.NAME]`."""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class RuleSettings(BaseModel):
    """Of every rule. The reward is `weight` times what was found.

    `cap`: the rewards of one attempt by this rule add up to so much at most, without their sign; earlier spans come
    first. `agents`: names or regular expressions for whole names; an empty list is everybody.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    weight: float = Field(ge=-1e6, le=1e6)
    cap: float | None = Field(default=None, gt=0)

    @field_validator("agents", "tools", "models", check_fields=False)
    @classmethod
    def _patterns_can_be_read(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return patterns


class AgentSettings(RuleSettings):
    """Of a rule about calls."""

    agents: list[str] = []


class ToolSettings(AgentSettings):
    """Of a rule about tools. `tools`: as `agents`."""

    tools: list[str] = []


class LatencySettings(AgentSettings):
    """`weight` is per second beyond `above_s`, of each call or of the rollout as a whole."""

    above_s: float = Field(default=0.0, ge=0)
    of: Literal["rollout", "call"] = Field(default="rollout", validate_default=True)

    @field_validator("of")
    @classmethod
    def _a_rollout_is_no_agents(cls, of: str, info: ValidationInfo) -> str:
        if of == "rollout" and info.data.get("agents"):
            raise ValueError("with agents it must be 'call': a rollout as a whole is no agent's")
        return of


class CostSettings(AgentSettings):
    """`weight` is per unit of the currency that the prices of a million tokens are in. `models`: as `agents`."""

    input_per_million: float = Field(ge=0)
    output_per_million: float = Field(ge=0)
    models: list[str] = []

    def is_of(self, model: str) -> bool:
        """Whether the prices are those of `model`."""
        return not self.models or any(model == one or re.fullmatch(one, model) for one in self.models)


class OwnSettings(ToolSettings):
    """Of a rule of the user's own. `function`: `module:function`, where both are found by import."""

    function: str

    @field_validator("function")
    @classmethod
    def _names_module_and_function(cls, function: str) -> str:
        if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", function) is None:
            raise ValueError(f"write module:function instead of {function!r}")
        return function
