"""What there is to learn from: what a job asks of the store, and how many attempts of each kind it has."""

from dataclasses import dataclass
from typing import Any

from trainer.since import Since


@dataclass(frozen=True)
class Sought:
    """Which attempts a job may learn from: those of `policy` since `since`, of which nothing was seen since
    `quiet_before_ns` (until then they settle).

    `penalized`: statuses whose attempts need no reward where others of their task have one. `counted`: names of the
    evaluations that are rewards; None for all.
    """

    policy: str
    since: Since
    quiet_before_ns: int
    penalized: frozenset[str] = frozenset()
    counted: frozenset[str] | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Of `sql/attempts.sql`."""
        return {
            "policy": self.policy,
            "since_ns": self.since.from_ns,
            "again": int(not self.since.untrained_only),
            "quiet_before_ns": self.quiet_before_ns,
            "penalized": sorted(self.penalized),
            "every": int(self.counted is None),
            "counted": sorted(self.counted or ()),
        }


@dataclass(frozen=True)
class Backlog:
    """How many attempts there are in all, and of these how many of each kind. Held-out ones are not counted."""

    total: int
    ready: int
    settling: int
    lost: int
    running: int
    unrewarded: int
    uncalled: int
    alongside: int
    trained: int
