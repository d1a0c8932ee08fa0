"""Weights as files: `<weights>/<policy>/<version>/model.safetensors`, and the base model that a job starts from.

Invariant: a version number stands for one set of weights for ever. What would break that is refused.
"""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from tracegrad.errors import SettingsError, TracegradError
from trainer.config import PublishConfig, TrainConfig
from trainer.records import StepRecord

FILE = "model.safetensors"


def file_of(publish: PublishConfig, policy: str, version: int) -> Path:
    """Where the weights of a version are handed over."""
    return publish.weights / policy / str(version) / FILE


def sha256_of(file: Path) -> str:
    """Hexadecimal digest of a file's bytes."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def base_sha256(model: Path) -> str:
    """Digest of the base model's weights; empty when they are not one safetensors file."""
    if not (model / "config.json").is_file():
        raise SettingsError(f"bad setting engine.model: no model (config.json) in directory {model}")
    file = model / FILE
    return sha256_of(file) if file.is_file() else ""


def prune(publish: PublishConfig, policy: str, lineage: Sequence[int]) -> None:
    """Delete the weights of this job's versions, all but the newest `keep_versions`. Others' are left alone."""
    for version in lineage[: -publish.keep_versions]:
        directory = file_of(publish, policy, version).parent
        if directory.is_dir():
            shutil.rmtree(directory)


def check_continues(newest: StepRecord, config: TrainConfig, base: str) -> None:
    """Raise SettingsError where the checkpoints of a job are of another policy or another base model."""
    way_out = f"train under another `job` name, or delete {config.engine.checkpoints / config.job}"
    if newest.policy != config.data.policy:
        raise SettingsError(
            f"job {config.job!r} has trained policy {newest.policy!r}, not {config.data.policy!r}: {way_out}"
        )
    if newest.base_sha256 and base and newest.base_sha256 != base:
        raise SettingsError(
            f"job {config.job!r} has started from other weights than those in {config.engine.model}: {way_out}"
        )


def check_is_base(policy: str, served: int, recorded: str | None, base: str, model: Path) -> None:
    """Raise TracegradError where the version that the engine serves is recorded with other weights than `model`'s."""
    if recorded and base and recorded != base:
        raise TracegradError(
            f"version {served} of policy {policy!r}, which the engine serves, is not {model} but other weights in the "
            "store: restart vLLM with that model, restore the job's checkpoints, or train under another policy name"
        )
