"""The engine's state in files: weights for others, checkpoints for ourselves. safetensors and JSON only, no pickle.

Everything is written beside its destination, synced to disk and renamed, so a name stands for a complete file or
directory. A checkpoint holds full tensors: it does not depend on verl's version or on how the model was sharded.

    policy.safetensors     parameters and buffers by module name
    optimizer.safetensors  PARAMETER/exp_avg and the other entries of the optimizer's state; rng/cpu, rng/cuda
    checkpoint.json        {"format": 1}
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor, distribute_tensor

from tracegrad.errors import InputError, TracegradError

FORMAT = 1
POLICY, OPTIMIZER, ABOUT = "policy.safetensors", "optimizer.safetensors", "checkpoint.json"


def write_weights(file: Path, parameters: Iterable[tuple[str, torch.Tensor]], module: torch.nn.Module) -> None:
    """Write `parameters` (HuggingFace names), without the names that are tied to another. Raises TracegradError
    where a weight is not finite: an engine would serve it without complaint."""
    tied = _tied_names(module)
    tensors = {name: _full(tensor) for name, tensor in parameters if name not in tied}
    broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise TracegradError(f"weights of {broken[0]} are not finite, nothing was written: lower engine.lr")
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _save(draft, tensors)
        draft.chmod(0o644)  # safetensors creates files that only their owner can read
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    _sync(file.parent)


def save(directory: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint, in place of one that may be there."""
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    old = directory.with_name(f".{directory.name}.{os.getpid()}.old")
    draft.mkdir(parents=True)
    try:
        _save(draft / POLICY, {name: _full(tensor) for name, tensor in _module_tensors(module).items()})
        _save(draft / OPTIMIZER, _optimizer_tensors(module, optimizer) | _random_state())
        (draft / ABOUT).write_text(json.dumps({"format": FORMAT}))
        _sync(draft / ABOUT)
        _sync(draft)
        if directory.exists():
            directory.rename(old)
        draft.rename(directory)
        _sync(directory.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def restore(directory: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read what `save` wrote. Raises InputError where it is no checkpoint, or one of another model."""
    try:
        about = json.loads((directory / ABOUT).read_text())
        policy, rest = load_file(directory / POLICY), load_file(directory / OPTIMIZER)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"{directory} is not a complete checkpoint ({error}): delete it to go on from an older"
        ) from error
    if about.get("format") != FORMAT:
        raise InputError(
            f"{directory} has checkpoint format {about.get('format')}, not {FORMAT}: written by another version"
        )
    own = _module_tensors(module)
    shapes, expected = ({name: tuple(t.shape) for name, t in tensors.items()} for tensors in (policy, own))
    if shapes != expected:
        raise InputError(f"{directory} is a checkpoint of another model than engine.model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(_like(policy[name], tensor))
    _restore_optimizer(rest, module, optimizer)
    torch.set_rng_state(rest["rng/cpu"])
    if "rng/cuda" in rest and torch.cuda.is_available():
        torch.cuda.set_rng_state(rest["rng/cuda"])


def _module_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, a shared one once, and the buffers that belong to the state."""
    tied = _tied_names(module)
    return {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if name not in tied}


def _tied_names(module: torch.nn.Module) -> set[str]:
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return every - {name for name, _ in module.named_parameters()}


def _optimizer_tensors(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{entry}": _full(value)
        for name, parameter in module.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def _restore_optimizer(
    tensors: Mapping[str, torch.Tensor], module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    parameters = dict(module.named_parameters())
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        if name in parameters:
            parameter = parameters[name]
            optimizer.state[parameter][entry] = tensor if tensor.ndim == 0 else _like(tensor, parameter)


def _random_state() -> dict[str, torch.Tensor]:
    state = {"rng/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["rng/cuda"] = torch.cuda.get_rng_state()
    return state


def _full(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().to("cpu", copy=True).contiguous()


def _like(full: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`full`, sharded and placed as `tensor` is."""
    if isinstance(tensor, DTensor):
        return distribute_tensor(full.to(tensor.device), tensor.device_mesh, tensor.placements)
    return full.to(tensor.device)


def _save(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, file, metadata={"format": "pt"})
    _sync(file)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
