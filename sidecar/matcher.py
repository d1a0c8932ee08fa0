"""Which calls an operator's rule means: by model name, rollout, agent, headers, or words of the system prompt.

Agents write the texts that are matched here, on the event loop that serves all of them. So the patterns run on an
engine whose time grows linearly with the text (Rust's `regex`, which pydantic brings along): no text can stall the
sidecar. It has no look-around and no back-references, and says so when a pattern asks for them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from pydantic_core import SchemaError, SchemaValidator, core_schema

from sidecar.facts import Facts
from tracegrad.errors import InputError

MAX_PATTERN_CHARS = 1000
MAX_REPEATS = 250
"""The product of the counts in a pattern, such as the 20 of `a{2,20}`: linear time is per character and repeat."""
MAX_SYSTEM_CHARS = 16_384
"""Of a system prompt, from its start, that a pattern sees."""
STAR = "*"

_COUNT = re.compile(r"\{(?:\d*,)?(\d+),?\}")


class Pattern:
    """A regular expression in Rust's syntax. `whole`: it must match all of a text, else any part of it."""

    def __init__(self, text: str, *, whole: bool) -> None:
        """Raises InputError with the reason where the pattern cannot be used."""
        self.text = text
        if len(text) > MAX_PATTERN_CHARS:
            raise InputError(f"a pattern has at most {MAX_PATTERN_CHARS} characters, this one {len(text)}")
        if prod(int(count) or 1 for count in _COUNT.findall(text)) > MAX_REPEATS:
            raise InputError(f"pattern {text!r} repeats too much: its {{n}} may multiply to {MAX_REPEATS} at most")
        self._validator = _compiled(text, text)
        if whole:
            self._validator = _compiled(rf"\A(?:{text})\z", text)

    def matches(self, text: str) -> bool:
        """Whether it fits. A text that is no Unicode (bytes of a header that are not UTF-8) fits nothing."""
        return self._validator.isinstance_python(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


def _compiled(pattern: str, shown: str) -> SchemaValidator:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True))
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].strip().removeprefix("SchemaError: ").removeprefix("error: ")
        raise InputError(f"pattern {shown!r} is not a regular expression that can be used here: {reason}") from error


@dataclass(frozen=True)
class ModelName:
    """A model name as a rule gives it, where `*` stands for any characters, or none."""

    text: str
    pattern: Pattern | None
    """None: exactly `text`."""

    @classmethod
    def of(cls, text: str) -> "ModelName":
        """Raises InputError where the name is too long to be one."""
        if STAR not in text:
            return cls(text, None)
        return cls(text, Pattern("(?s:" + ".*".join(re.escape(part) for part in text.split(STAR)) + ")", whole=True))

    @property
    def rank(self) -> int:
        """How special it is: 0 an exact name, 1 one with `*` in it, 2 `*` alone."""
        return 0 if self.pattern is None else 2 if self.text == STAR else 1

    def fits(self, name: str) -> bool:
        """Whether a model name is meant."""
        return name == self.text if self.pattern is None else self.pattern.matches(name)


@dataclass(frozen=True)
class Matcher:
    """A rule: all that is given must hold. What a call does not have (no agent, no rollout) never matches."""

    model: ModelName | None = None
    rollout: Pattern | None = None
    agent: Pattern | None = None
    system: Pattern | None = None
    headers: tuple[tuple[str, Pattern], ...] = ()

    def holds(self, facts: Facts) -> bool:
        """Whether a call is meant. The system prompt is looked at last, since it is the longest."""
        return (
            (self.model is None or (facts.model is not None and self.model.fits(facts.model)))
            and (self.rollout is None or (facts.rollout_id is not None and self.rollout.matches(facts.rollout_id)))
            and (self.agent is None or (facts.agent is not None and self.agent.matches(facts.agent)))
            and all((value := facts.headers.get(name)) is not None and one.matches(value) for name, one in self.headers)
            and (self.system is None or self.system.matches(facts.system[:MAX_SYSTEM_CHARS]))
        )


def matcher(
    *,
    model: str | None = None,
    rollout: str | None = None,
    agent: str | None = None,
    system: str | None = None,
    header: Mapping[str, str] | None = None,
) -> Matcher:
    """A rule from its text: all patterns but `system`'s must match whole. Raises InputError naming the bad part."""

    def pattern(what: str, text: str | None, *, whole: bool = True) -> Pattern | None:
        try:
            return None if text is None else Pattern(text, whole=whole)
        except InputError as error:
            raise InputError(f"{what}: {error}") from error

    headers = tuple((name, pattern(f"header {name}", text)) for name, text in sorted((header or {}).items()))
    return Matcher(
        None if model is None else ModelName.of(model),
        pattern("rollout", rollout),
        pattern("agent", agent),
        pattern("system", system, whole=False),
        tuple((name, one) for name, one in headers if one is not None),
    )
