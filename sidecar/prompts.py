"""System prompts that replace those of the agents, by rule.

Invariants: at most one substitution per call, by the first prompt in order of name that is enabled and whose match
holds. A rollout gets one variant of a prompt from its first call that matches to its last, whatever happens to weights
and variants meanwhile. What an operator switches (a match, `enabled`, a deletion) is in force for every later call.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from sidecar.facts import Facts
from sidecar.prompt_definition import Override, VariantText, filled
from sidecar.prompt_rollouts import RolloutVariants
from sidecar.prompt_store import PromptStore

CHAT = "chat"
"""The operation of the APIs that have a system prompt."""


@dataclass(frozen=True)
class Substitution:
    """The prompt chosen for one call."""

    name: str
    version: int
    text: str


class Prompts:
    """The overrides in force. Each process has its own; they agree through the data directory."""

    def __init__(self, data: Path) -> None:
        """Raises SettingsError where what is kept there cannot be read."""
        self._store = PromptStore(data)
        self._rollouts = RolloutVariants(data)

    def choose(self, facts: Facts, rollout_id: str) -> Substitution | None:
        """The variant for a call: the same one throughout a rollout. None: nothing matches."""
        overrides = self._store.current()
        if not overrides or facts.dialect.operation != CHAT:
            return None
        for override in overrides:
            if override.definition.enabled and override.matcher.holds(facts):
                version = self._version(override, facts, rollout_id)
                return Substitution(override.name, version, filled(override.texts[version], facts.system))
        return None

    def close(self) -> None:
        """Let go of the files."""
        self._rollouts.close()

    def _version(self, override: Override, facts: Facts, rollout_id: str) -> int:
        def drawn() -> int:
            return draw(override.name, rollout_id, override.definition.variants)

        if facts.rollout_id is None and "traceparent" not in facts.headers:
            return drawn()  # a call of its own: its trace ends with it
        return self._rollouts.version(override.name, rollout_id, override.texts, drawn)


def draw(prompt: str, rollout_id: str, variants: Iterable[VariantText]) -> int:
    """A version, with probability proportional to weight, the same for the same arguments everywhere.

    Weighted rendezvous hashing: the least of `-ln(u) / weight`, with `u` from a hash of rollout and version. So a
    change of weights would move only as many as it must, to the variants that gained.
    """

    def score(variant: VariantText) -> float:
        digest = sha256(f"{prompt}\0{rollout_id}\0{variant.version}".encode()).digest()
        uniform = ((int.from_bytes(digest[:8]) >> 11) + 0.5) / 2**53
        return -math.log(uniform) / variant.weight

    return min(variants, key=score).version
