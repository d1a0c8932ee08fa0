"""What an operator says of one prompt override: which calls it means, and the texts they get, by weight.

A version names one text for ever, so that a version in a span tells what the model was told. `{system}` in a text
stands for the agent's own system prompt, and `{{system}}` for the word `{system}` itself; no other brace has a meaning.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sidecar.matcher import Matcher, matcher
from tracegrad.errors import InputError

MAX_TEXT_CHARS = 200_000
MAX_VARIANTS = 100
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_PLACE = re.compile(r"\{\{system\}\}|\{system\}")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MatchText(_Part):
    """Which calls are meant: all that is given must hold. Nothing given: every call of an API with system prompts."""

    model: str | None = None
    rollout: str | None = None
    agent: str | None = None
    system: str | None = None
    header: dict[str, str] = {}

    @property
    def rule(self) -> Matcher:
        """The rule. Raises InputError where a pattern is bad."""
        return matcher(**self.model_dump())


class VariantText(_Part):
    """One of the texts. `text` None: the one that the version has already."""

    version: Annotated[int, Field(ge=1, lt=2**63)]
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)] | None = None
    weight: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 1.0


class Definition(_Part):
    """A prompt override, as it is put and kept."""

    match: MatchText = MatchText()
    variants: Annotated[list[VariantText], Field(min_length=1, max_length=MAX_VARIANTS)]
    enabled: bool = True

    @model_validator(mode="after")
    def _holds_together(self) -> "Definition":
        versions = [variant.version for variant in self.variants]
        if twice := [version for version in versions if versions.count(version) > 1]:
            raise ValueError(f"version {twice[0]} is there twice: give each variant a version of its own")
        try:
            _ = self.match.rule
        except InputError as error:
            raise ValueError(f"match: {error}") from error
        return self

    @classmethod
    def read(cls, content: bytes) -> "Definition":
        """From JSON. Raises InputError with one sentence."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            reason = first["msg"].removeprefix("Value error, ")
            raise InputError(f"bad prompt: {where}: {reason}" if where else f"bad prompt: {reason}") from error


@dataclass(frozen=True)
class Override:
    """A prompt override in force."""

    name: str
    definition: Definition
    matcher: Matcher
    texts: Mapping[int, str]
    """Every text it ever had, by version."""

    @property
    def shown(self) -> dict[str, Any]:
        """For people and programs. `retired`: the versions that no new rollout gets."""
        variants = [
            {"version": one.version, "weight": one.weight, "text": self.texts[one.version]}
            for one in self.definition.variants
        ]
        given = {one.version for one in self.definition.variants}
        return {
            "name": self.name,
            "enabled": self.definition.enabled,
            "match": self.definition.match.model_dump(exclude_defaults=True),
            "variants": variants,
            "retired": [{"version": one, "text": self.texts[one]} for one in sorted(self.texts.keys() - given)],
        }


def filled(text: str, system: str) -> str:
    """The system prompt that a variant makes of the agent's own."""
    return _PLACE.sub(lambda found: system if found[0] == "{system}" else "{system}", text)
