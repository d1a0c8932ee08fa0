"""A policy, its replicas, and which of them a call goes to.

- A rollout, named or known by its trace, stays on one replica, whose prefix cache then holds its history: the first
  that may take it in an order that follows from the rollout's id and the replicas' URLs alone (rendezvous hashing).
  So all processes agree, also after a restart, and when a replica comes or goes only its own rollouts move.
- No rollout starves behind a crowded replica: one that has more than `CROWDED` times its share of all calls in flight
  (and more than `ROOM`) is passed over for the next in the rollout's order. That costs one prefill.
- Other calls go to the least loaded.
- Only replicas in service are looked at while there is one, even if it has to be waited for; then those that answer
  but should run other weights, or cannot tell which; those that are down come last.
"""

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sidecar.replica import SERVES, Replica, Stamp

__all__ = ["Policy", "Replica", "Stamp"]

CROWDED = 1.25
ROOM = 8


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
        """
        while left := [replica for replica in self.replicas if replica not in tried]:
            if len(left) > 1:
                best = min(replica.rank for replica in left)
                left = [replica for replica in left if replica.rank == best]
            if ready := [replica for replica in left if replica.is_open]:
                chosen = ready[0] if len(ready) == 1 else _pick(ready, rollout_id)
                if chosen.version is None and not chosen.broken and not chosen.mute:
                    await chosen.confirmed()
                    if chosen.rank > min(replica.rank for replica in self.replicas if replica not in tried):
                        continue
                if chosen.is_open:
                    return chosen
            else:
                await _any_opened(left)
        return None


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


async def _any_opened(replicas: Sequence[Replica]) -> None:
    waits = [asyncio.create_task(replica.opened()) for replica in replicas]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
