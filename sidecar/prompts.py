"""System prompts that replace those of the agents, by rule."""

from dataclasses import dataclass

from sidecar.facts import Facts


@dataclass(frozen=True)
class Substitution:
    """The prompt chosen for one call."""

    name: str
    version: int
    text: str


class Prompts:
    """The overrides in force."""

    def choose(self, facts: Facts, rollout_id: str) -> Substitution | None:
        """The variant for a call: the same one throughout a rollout. None: nothing matches."""
        return None
