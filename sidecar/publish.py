"""Put new weights into the replicas of a policy, one after another, while agents go on calling.

Per replica: new calls wait here, requests in flight freeze in the engine, weights are swapped, caches dropped, all go
on. Whatever fails, the engine is resumed. What the engine runs after a failed load is unknown and stamped as such.
"""

import asyncio
import hmac
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from sidecar import engine
from sidecar.engine import EngineError
from sidecar.policy import Policy, Replica
from sidecar.weight_file import sha256_of
from tracegrad.errors import InputError, TracegradError

log = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
RESUME_RETRIES_S = (0.2, 1.0)
HALF_LOADED = "a weight update failed half-way: publish again"


class ConflictError(TracegradError):
    """The publication contradicts what is under way or was published before."""


@dataclass(frozen=True)
class Weights:
    """A file of weights, and the policy version it is to become."""

    version: int
    file: Path
    root: Path
    """The directory that engines may read from."""
    sha256: str


@dataclass
class Publisher:
    """Publishes to the policies of one sidecar; one publication per policy at a time."""

    session: aiohttp.ClientSession
    weights_root: Path
    published: dict[tuple[str, int], str] = field(default_factory=dict)
    """sha256 by policy and version: a version names one set of weights for ever."""
    _busy: set[str] = field(default_factory=set)

    async def publish(self, policy: Policy, version: int, path: str, sha256: str) -> float:
        """Load the weights everywhere; returns the longest time (s) that a replica stood still.

        Raises InputError (bad path), ConflictError (other content, or another publication under way) and EngineError.
        """
        if policy.name in self._busy:
            raise ConflictError(f"a publication of policy {policy.name!r} is under way: wait for it")
        self._busy.add(policy.name)
        try:
            return await self._publish(policy, await self._check(policy, version, path, sha256.lower()))
        finally:
            self._busy.discard(policy.name)

    async def _check(self, policy: Policy, version: int, path: str, sha256: str) -> Weights:
        known = self.published.get((policy.name, version))
        if known is not None and known != sha256:
            raise ConflictError(
                f"version {version} of policy {policy.name!r} was published with sha256 {known}: use a new version"
            )
        file = confine(path, self.weights_root)
        found = await asyncio.to_thread(sha256_of, file)
        if not hmac.compare_digest(found, sha256):
            raise ConflictError(f"{file.name} of version {version} has sha256 {found}, not {sha256}: write it again")
        return Weights(version, file, self.weights_root.resolve(), sha256)

    async def _publish(self, policy: Policy, weights: Weights) -> float:
        for replica in policy.replicas:
            await replica.confirmed()
            if not replica.healthy and not replica.broken:
                raise EngineError(f"nothing was changed: {replica.problem}")
        stalls = [0.0]
        for replica in policy.replicas:
            if replica.version != weights.version or (policy.name, weights.version) not in self.published:
                stalls.append(await swap(self.session, replica, weights))
        self.published[policy.name, weights.version] = weights.sha256
        log.info("published policy=%s version=%d stall_s=%.3f", policy.name, weights.version, max(stalls))
        return max(stalls)


async def swap(session: aiohttp.ClientSession, replica: Replica, weights: Weights) -> float:
    """Load weights into one replica; returns how long (s) it stood still. Raises EngineError."""
    await replica.confirmed()
    if not replica.transfer_ready:
        await engine.init_transfer(session, replica.url, str(weights.root))
        replica.transfer_ready = True
    replica.set_gate(updating=True)
    replica.observed(None)
    started = time.monotonic()
    touched = loaded = False
    try:
        await engine.pause(session, replica.url)
        touched = True
        await engine.load_weights(session, replica.url, str(weights.file), weights.version)
        loaded = True
    finally:
        replica.broken = touched and not loaded
        try:
            if not replica.paused:
                await asyncio.shield(_resume(session, replica))
        finally:
            replica.set_gate(updating=False)
            if loaded:
                replica.found(weights.version)
            elif touched:
                replica.lost(HALF_LOADED)
    return time.monotonic() - started


async def _resume(session: aiohttp.ClientSession, replica: Replica) -> None:
    for wait_s in RESUME_RETRIES_S:
        try:
            return await engine.resume(session, replica.url)
        except EngineError as error:
            log.warning("resume failed, trying again url=%s problem=%s", replica.url, error)
            await asyncio.sleep(wait_s)
    return await engine.resume(session, replica.url)


async def pause(session: aiohttp.ClientSession, policy: Policy) -> None:
    """Hold new calls here and freeze those in flight in the engines, until `resume`. Raises EngineError."""
    for replica in policy.replicas:
        replica.set_gate(paused=True)
    for replica in policy.replicas:
        await engine.pause(session, replica.url)


async def resume(session: aiohttp.ClientSession, policy: Policy) -> None:
    """End `pause`. New calls are let in even where an engine does not answer. Raises EngineError for those."""
    failures = []
    for replica in policy.replicas:
        try:
            await engine.resume(session, replica.url)
        except EngineError as error:
            failures.append(str(error))
        replica.set_gate(paused=False)
    if failures:
        raise EngineError("; ".join(failures))


def confine(path: str, root: Path) -> Path:
    """The weights file that `path` names, symbolic links resolved. Raises InputError unless it lies under `root`."""
    base = root.resolve()
    try:
        file = Path(path).resolve()
        file = (file / WEIGHTS_FILE).resolve() if file.is_dir() else file
        usable = file.is_file() and file.suffix == ".safetensors"
    except (OSError, ValueError) as error:
        raise InputError(f"weights {path!r} cannot be read: {error}") from error
    if not file.is_relative_to(base):
        raise InputError(f"weights must lie under {base}: write them there, or set [sidecar] weights")
    if not usable:
        raise InputError(f"weights must be a .safetensors file or a directory with {WEIGHTS_FILE}: {path!r} is neither")
    return file
