"""Reward sets: which evaluations of a rollout count as rewards, and how much.

Without one, every evaluation counts as it is. Rewards stay in the store as they were given; a set is a way to look at
them, so that what a job would have learned from others can be seen without giving any.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.rollout import Rollout


@dataclass(frozen=True)
class Given:
    """The newest reward of one name on one span; an empty span id stands for a root span that has not arrived."""

    span_id: str
    name: str
    score: float


@dataclass(frozen=True)
class RewardSet:
    """Weights by evaluation name or pattern (`rule.*`); None takes every evaluation with weight 1.

    A name's own entry goes before patterns, and of these the first that matches counts. What has no weight is none.
    """

    weights: Mapping[str, float] | None = None

    def weight(self, name: str) -> float | None:
        """The weight of an evaluation; None when it is no reward in this set."""
        if self.weights is None:
            return 1.0
        if name in self.weights:
            return self.weights[name]
        return next((weight for pattern, weight in self.weights.items() if fnmatchcase(name, pattern)), None)

    def taken(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are rewards."""
        return [name for name in names if self.weight(name) is not None]

    def by_span(self, given: Iterable[Given]) -> dict[str, float]:
        """Span id to the weighted sum of its rewards, exact before its one rounding."""
        sums: dict[str, list[float]] = defaultdict(list)
        for one in given:
            weight = self.weight(one.name)
            if weight is not None:
                sums[one.span_id].append(weight * one.score)
        return {span_id: math.fsum(scores) for span_id, scores in sums.items()}

    def weighed(self, rollout: "Rollout") -> "Rollout":
        """The rollout with the rewards of this set; without any of them it has no reward."""
        rewards = self.by_span(rollout.given)
        return replace(rollout, rewards=rewards, reward=math.fsum(rewards.values()) if rewards else None)


def reward_set_named(name: str, tables: Mapping[str, Mapping[str, float]]) -> RewardSet:
    """The set of that name in `tables`; a name that is in none of them is that of the evaluations alone."""
    if not name:
        return RewardSet()
    return RewardSet(tables.get(name, {name: 1.0}))
