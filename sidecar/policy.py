"""A policy, its replicas, and which of them a call goes to.

- A rollout, named or known by its trace, stays on one replica, whose prefix cache then holds its history: the first
  that may take it in an order that follows from the rollout's id and the replicas' URLs alone (rendezvous hashing).
  So all processes agree, also after a restart, and when a replica comes or goes only its own rollouts move.
- No rollout starves behind a crowded replica: one that has more than `CROWDED` times its share of all calls in flight
  (and more than `ROOM`) is passed over for the next in the rollout's order. That costs one prefill.
- Other calls go to the least loaded.
- Only replicas in service are looked at while there is one, even if it has to be waited for; then those that answer
  but should run other weights, or cannot tell which; those that are down come last.
- One with unknown weights is never chosen. Where no other is left, a call waits `MEND_WAIT_S` for one to be mended.
"""

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sidecar.dialect import Refusal
from sidecar.replica import SERVES, Choice, Replica, Stamp, Standing

__all__ = ["Policy", "Replica", "Stamp"]

CROWDED = 1.25
ROOM = 8
MEND_WAIT_S = 10.0
RETRY_AFTER_S = 5
UNKNOWN_WEIGHTS = "unknown_weights"


@dataclass(frozen=True)
class Policy:
    """A policy: weights that change, and the engines that serve them."""

    name: str
    model: str
    """The model name under which agents ask for it (`*`: any)."""
    replicas: tuple[Replica, ...]

    @property
    def version(self) -> int | None:
        """The version that all replicas in service run; None while they differ or one is not known."""
        versions = {replica.version for replica in self.replicas if replica.rank == SERVES}
        return versions.pop() if len(versions) == 1 else None

    async def choose(self, tried: Collection[Replica], rollout_id: str | None = None) -> Replica | None:
        """The replica that takes a call, waiting for one; None when all were tried.

        `rollout_id`: of the rollout that the call belongs to, by name or by the caller's trace; None where it is alone.
        Raises Refusal (503) where those that are left have unknown weights, and nobody mends one.
        """
        deadline: float | None = None
        while untried := [replica for replica in self.replicas if replica not in tried]:
            ready = [replica for replica in untried if replica.is_open]
            if len(untried) > 1:
                best = min(replica.rank for replica in untried)
                ready = [replica for replica in ready if replica.rank == best]
            if not ready:
                choices = [replica.choice for replica in untried]
                hopeless = all(replica.standing == Standing.BROKEN for replica in untried)
                now = asyncio.get_running_loop().time()
                deadline = (deadline or now + MEND_WAIT_S) if hopeless else None
                try:
                    async with asyncio.timeout_at(deadline):
                        await _any_turned(untried, choices)
                except TimeoutError:
                    raise unfit(untried) from None
                continue
            chosen = ready[0] if len(ready) == 1 else _pick(ready, rollout_id)
            if chosen.version is None and not chosen.mute:
                await chosen.confirmed()
                if chosen.rank > min(replica.rank for replica in untried):
                    continue
            if chosen.is_open:
                return chosen
        return None


def unfit(replicas: Sequence[Replica]) -> Refusal:
    """The answer while no replica may serve, since the weights of all are unknown."""
    problems = "; ".join(replica.problem for replica in replicas)
    return Refusal(503, problems, UNKNOWN_WEIGHTS, {"retry-after": str(RETRY_AFTER_S)})


def _pick(ready: Sequence[Replica], rollout_id: str | None) -> Replica:
    loads = [replica.in_flight for replica in ready]
    if rollout_id is None:
        return ready[loads.index(min(loads))]
    limit = max(ROOM, CROWDED * (sum(loads) + 1) / len(loads))
    key = hashlib.blake2b(rollout_id.encode()).digest()
    home, room = None, None
    for replica, load in zip(ready, loads, strict=True):
        weight = hashlib.blake2b(replica.url.encode(), key=key, digest_size=8).digest()
        if home is None or weight > home[0]:
            home = weight, replica
        if load < limit and (room is None or weight > room[0]):
            room = weight, replica
    chosen = room or home
    assert chosen is not None  # noqa: S101 - `ready` is not empty
    return chosen[1]


async def _any_turned(replicas: Sequence[Replica], choices: Sequence[Choice]) -> None:
    waits = [asyncio.create_task(replica.turned(choice)) for replica, choice in zip(replicas, choices, strict=True)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
