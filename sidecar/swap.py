"""Swap the weights of one replica while agents go on calling.

New calls wait here, those that have just ended are proved, requests in flight freeze in the engine, weights are
swapped, caches dropped, all go on. Whatever fails, the engine is resumed. What it runs after a load that failed is
unknown, and it serves nothing until one succeeds.
"""

import asyncio
import hmac
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from sidecar import engine
from sidecar.engine import EngineError
from sidecar.policy import Policy
from sidecar.replica import Replica
from sidecar.weight_file import read_header, sha256_of
from tracegrad.errors import InputError

log = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
RESUME_RETRIES_S = (0.2, 1.0)


@dataclass(frozen=True)
class Weights:
    """A file of weights whose digest was checked, and the policy version it is to become."""

    version: int
    file: Path
    root: Path
    """The directory that engines may read from."""
    sha256: str


async def swap(session: aiohttp.ClientSession, replica: Replica, weights: Weights) -> float:
    """Load weights into one replica; returns how long (s) it stood still. Raises EngineError."""
    await replica.confirmed()
    if not replica.transfer_ready:
        await engine.init_transfer(session, replica.url, str(weights.root))
        replica.transfer_ready = True
    started = time.monotonic()
    await replica.close()
    replica.begin_update()
    touched = False
    loaded: int | None = None
    try:
        await engine.pause(session, replica.url)
        touched = True
        await engine.load_weights(session, replica.url, str(weights.file), weights.sha256, weights.version)
        loaded = weights.version
    finally:
        try:
            if not replica.paused:
                await asyncio.shield(_resume(session, replica))
        finally:
            replica.end_update(loaded, touched=touched)
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
        replica.set_paused(on=True)
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
        replica.set_paused(on=False)
    if failures:
        raise EngineError("; ".join(failures))


async def checked(version: int, path: str, sha256: str, root: Path) -> Weights:
    """The weights at `path`. Raises InputError unless they lie under `root`, have this digest and are safetensors."""
    return await asyncio.to_thread(_checked, version, path, sha256, root)


def _checked(version: int, path: str, sha256: str, root: Path) -> Weights:
    file = confine(path, root)
    try:
        found = sha256_of(file)
        if hmac.compare_digest(found, sha256):
            read_header(file)
    except OSError as error:
        raise InputError(f"weights {path!r} cannot be read: {error}") from error
    if not hmac.compare_digest(found, sha256):
        raise DigestError(f"{file.name} of version {version} has sha256 {found}, not {sha256}: write it again")
    return Weights(version, file, root.resolve(), sha256)


class DigestError(InputError):
    """The file is not the one that was meant."""


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
