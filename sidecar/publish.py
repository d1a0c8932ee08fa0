"""Put new weights into the replicas of a policy, one after another, so that all that serve run one known version.

- Replicas that are away when a publication begins, or leave before they are touched, do not stop it: they are brought
  to the new version when they come back (`sidecar.catch_up`), before they serve again.
- When a replica fails, those that have the new version go back to the one before it, if that was published here and
  its file is still there, unchanged; the one that failed is given that version too. Where there is nothing to go back
  to (the weights that the engines were started with have no file), the publication goes forward with the rest.
- A replica that cannot be brought to the version that the others run is out of service until it can; one whose weights
  are unknown serves nothing.
- To publish a version again makes it the policy's version, also when newer ones were published since: the way back
  for an operator. The content of a version never changes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from sidecar.engine import EngineError, EngineGoneError
from sidecar.policy import Policy, Replica
from sidecar.publications import Publications, State
from sidecar.swap import DigestError, Weights, checked, swap
from tracegrad.errors import InputError, TracegradError

log = logging.getLogger(__name__)


class ConflictError(TracegradError):
    """The publication contradicts what is under way or was published before."""


class Publisher:
    """Publishes to the policies of one sidecar; one change per policy at a time."""

    def __init__(self, session: aiohttp.ClientSession, weights_root: Path, publications: Publications) -> None:
        self.publications = publications
        self._session = session
        self._root = weights_root
        self._busy: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    def adopt(self, policy: Policy) -> None:
        """Have the replicas of a policy run what was published last, by whichever process."""
        current = self.publications.current(policy.name)
        _want(policy, current.version if current else None)

    async def publish(self, policy: Policy, version: int, path: str, sha256: str) -> float:
        """Load the weights everywhere; returns the longest time (s) that a replica stood still.

        Raises InputError (bad path), ConflictError (other content, or another publication under way), RecordError (no
        record can be kept) and EngineError, which says what each replica then runs.
        """
        if policy.name in self._busy:
            raise ConflictError(f"a publication of policy {policy.name!r} is under way: wait for it")
        self._busy.add(policy.name)
        try:
            known = self.publications.find(policy.name, version)
            if known is not None and known.sha256 != sha256.lower():
                raise ConflictError(
                    f"version {version} of policy {policy.name!r} was published with sha256 {known.sha256}: "
                    "use a new version"
                )
            try:
                weights = await checked(version, path, sha256.lower(), self._root)
            except DigestError as error:
                raise ConflictError(str(error)) from error
            async with self._lock(policy):
                return await self._publish(policy, weights, known_before=known is not None)
        finally:
            self._busy.discard(policy.name)

    async def catch_up(self, policy: Policy, replica: Replica) -> None:
        """Load what was published last into a replica that runs something else. Raises InputError and EngineError."""
        async with self._lock(policy):
            await replica.confirmed()
            current = self.publications.current(policy.name)
            replica.set_wanted(current.version if current else None)
            if current is None or not replica.behind:
                return
            found = replica.version
            if found and self.publications.find(policy.name, found) is None:
                raise EngineError(
                    f"version {found} was not published here, so it is left as it is; "
                    f"to bring it to version {current.version}, publish that again"
                )
            weights = await checked(current.version, str(current.file), current.sha256, self._root)
            stall_s = await swap(self._session, replica, weights)
            log.info("caught up url=%s from=%s to=%d stall_s=%.3f", replica.url, found, weights.version, stall_s)

    async def forget(self, policy: Policy) -> None:
        """Drop what was published: engines that are started anew keep the weights they start with."""
        if policy.name in self._busy:
            raise ConflictError(f"a publication of policy {policy.name!r} is under way: wait for it")
        async with self._lock(policy):
            await asyncio.to_thread(self.publications.forget, policy.name)
            _want(policy, None)

    @asynccontextmanager
    async def quiet(self, policy: Policy) -> AsyncIterator[None]:
        """While the block runs, no replica of the policy is touched."""
        async with self._lock(policy):
            yield

    def _lock(self, policy: Policy) -> asyncio.Lock:
        return self._locks.setdefault(policy.name, asyncio.Lock())

    async def _publish(self, policy: Policy, weights: Weights, *, known_before: bool) -> float:
        await asyncio.gather(*(replica.confirmed() for replica in policy.replicas))
        if not any(map(_may_load, policy.replicas)):
            raise EngineError(f"nothing was changed: {'; '.join(one.problem for one in policy.replicas)}")
        number = await asyncio.to_thread(
            self.publications.begin, policy.name, weights.version, weights.file, weights.sha256
        )
        stalls = [0.0]
        for replica in policy.replicas:
            if not _may_load(replica) or (known_before and _runs(replica, weights.version)):
                continue
            try:
                stalls.append(await swap(self._session, replica, weights))
            except EngineError as error:
                if isinstance(error, EngineGoneError) and not replica.broken:
                    log.warning("replica left before it was touched url=%s problem=%s", replica.url, error)
                    replica.lost(str(error))
                    continue
                raise await self._mend(policy, weights, number, replica, error) from error
        if not any(_runs(replica, weights.version) for replica in policy.replicas):
            await self._note(policy, number, State.FAILED)
            raise EngineError(f"nothing was changed: {'; '.join(one.problem for one in policy.replicas)}")
        _want(policy, weights.version)
        await self._note(policy, number, State.DONE)
        log.info("published policy=%s version=%d stall_s=%.3f", policy.name, weights.version, max(stalls))
        return max(stalls)

    async def _mend(
        self, policy: Policy, weights: Weights, number: int, failed: Replica, error: EngineError
    ) -> EngineError:
        """After a failure: bring all replicas to one version. Returns what to tell the publisher."""
        before = await self._before(policy, weights)
        ran = any(_runs(replica, weights.version) for replica in policy.replicas)
        if isinstance(before, Weights):
            for replica in policy.replicas:
                if _runs(replica, weights.version) or replica.broken:
                    await self._bring(replica, before)
            _want(policy, before.version)
            await self._note(policy, number, State.UNDONE if ran else State.FAILED)
            done = f"The policy goes back to version {before.version}"
        elif ran:
            for replica in policy.replicas:
                if replica is not failed and _may_load(replica) and not _runs(replica, weights.version):
                    await self._bring(replica, weights)
            _want(policy, weights.version)
            if failed.broken:
                failed.set_aside(str(error))
            await self._note(policy, number, State.DONE)
            done = f"Version {weights.version} stays where it was loaded, since {before}"
        else:
            if failed.broken:
                failed.set_aside(str(error))
            await self._note(policy, number, State.FAILED)
            done = f"No replica runs version {weights.version}" + (f", and {before}" if failed.broken else "")
        await asyncio.gather(*(replica.confirmed() for replica in policy.replicas))
        now = [f"{one.problem or f'engine at {one.url} runs version {one.version}'}." for one in policy.replicas]
        return EngineError(" ".join([f"{error}. {done}.", *now]))

    async def _before(self, policy: Policy, weights: Weights) -> Weights | str:
        """The weights to go back to; or why there are none."""
        current = self.publications.current(policy.name)
        if current is None or current.version == weights.version:
            return "no version before it was published here, so there is no file to go back to"
        try:
            return await checked(current.version, str(current.file), current.sha256, self._root)
        except InputError as error:
            return f"version {current.version} cannot be loaded again: {error}"

    async def _bring(self, replica: Replica, weights: Weights) -> None:
        try:
            await swap(self._session, replica, weights)
        except EngineGoneError as error:
            replica.lost(str(error))  # it is brought up to date when it comes back
        except EngineError as error:
            replica.set_aside(str(error))

    async def _note(self, policy: Policy, number: int, state: State) -> None:
        await asyncio.to_thread(self.publications.end, policy.name, number, state)


def _want(policy: Policy, version: int | None) -> None:
    for replica in policy.replicas:
        replica.set_wanted(version)


def _may_load(replica: Replica) -> bool:
    return replica.answers or replica.nameless


def _runs(replica: Replica, version: int) -> bool:
    return replica.version == version and not replica.broken
