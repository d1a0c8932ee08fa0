"""Weights in a safetensors file, checked before an engine that serves agents touches them.

All checks read at most the file's header and its bytes for the digest; none loads a tensor, needs torch or vLLM.
Each raises InputError with one line.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tracegrad.errors import InputError

MAX_HEADER_BYTES = 100 << 20
IGNORED_SUFFIX = ".rotary_emb.inv_freq"
"""Old checkpoints hold this constant; no engine loads it."""
TIED_HEAD = "lm_head.weight"
FLOATING = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor. `dtype` in safetensors' names: F32, BF16, ..."""

    dtype: str
    shape: tuple[int, ...]


def resolve_under(root: Path, path: str) -> Path:
    """The file that `path` names, links resolved, which must be a .safetensors file under `root`."""
    file = Path(path).resolve()
    if not file.is_relative_to(root.resolve()):
        raise InputError(f"weights {path!r} lie outside {root}: write them under it")
    if file.suffix != ".safetensors" or not file.is_file():
        raise InputError(f"weights {path!r} are not a .safetensors file")
    return file


def sha256_of(file: Path) -> str:
    """The digest of the whole file, in lower-case hex."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def check_sha256(file: Path, expected: str) -> None:
    """Read the whole file and compare its digest."""
    found = sha256_of(file)
    if not hmac.compare_digest(found, expected.lower()):
        raise InputError(f"{file} has sha256 {found}, not {expected}: write it again")


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Name -> dtype and shape of every tensor in the file, whose length must be what the header says."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        raw = content.read(length) if length <= MAX_HEADER_BYTES else b""
    try:
        entries = json.loads(raw)
        entries.pop("__metadata__", None)
        tensors = {name: TensorInfo(entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}
        end = max(entry["data_offsets"][1] for entry in entries.values())
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} is not a safetensors file: write it again") from error
    if file.stat().st_size != 8 + length + end:
        raise InputError(f"{file} is cut short: {file.stat().st_size} bytes instead of {8 + length + end}")
    return tensors


def served_tensors(model: Path) -> dict[str, TensorInfo] | None:
    """The tensors of the checkpoint that an engine was started with; None where it is not safetensors."""
    headers = [read_header(file) for file in sorted(model.glob("model*.safetensors"))]
    return {name: info for header in headers for name, info in header.items()} or None


def check_same_tensors(
    new: Mapping[str, TensorInfo], served: Mapping[str, TensorInfo], *, tied: bool, file: Path
) -> None:
    """`new` must have exactly the tensors of `served`, in the same shapes. With `tied`, lm_head may come or not."""

    def needed(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        return {
            name: info
            for name, info in tensors.items()
            if not name.endswith(IGNORED_SUFFIX) and not (tied and name == TIED_HEAD)
        }

    found, expected = needed(new), needed(served)
    for problem, names in (("lacks", expected.keys() - found.keys()), ("has unknown", found.keys() - expected.keys())):
        if names:
            raise InputError(f"{file} {problem} {min(names)} and {len(names) - 1} more: it holds another model")
    for name, info in found.items():
        if info.shape != expected[name].shape:
            shapes = f"{list(info.shape)}, not {list(expected[name].shape)}"
            raise InputError(f"{file} has {name} of shape {shapes}: it holds another model")
        if (info.dtype in FLOATING) != (expected[name].dtype in FLOATING):
            raise InputError(f"{file} has {name} as {info.dtype}, not as {expected[name].dtype}")
