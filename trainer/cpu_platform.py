"""verl on a machine without an accelerator: the `cpu` platform that verl 0.9.1 does not have.

verl asks its platform object for everything that depends on the device, and looks training engines up by device
name. It ships platforms for NVIDIA, ROCm and Ascend only, so on a plain machine it falls back to CUDA calls that
fail. `use_cpu()` gives it a platform whose device is `torch.device("cpu")`, whose collectives are gloo and whose
memory counters are zero. Nothing of verl is patched.
Once verl has a `cpu` platform of its own, this module can go.
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_base import PlatformBase


def use_cpu() -> None:
    """Make verl compute on CPU in this process. Must run before any `verl.workers` module is imported."""
    if isinstance(platform_manager._current_platform, CpuPlatform):
        return
    platform_manager.PlatformRegistry.register(platform="cpu")(CpuPlatform)
    platform_manager.set_platform(CpuPlatform())


def _device_module() -> types.ModuleType:
    """`torch.cpu`, with the functions of `torch.cuda` that verl calls and `torch.cpu` lacks."""
    module = types.ModuleType("trainer.cpu_platform.device")
    module.__dict__.update({name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")})

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def zero(*_: Any, **__: Any) -> int:
        return 0

    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device"):
        setattr(module, name, nothing)
    module.get_device_name = lambda *_: "CPU"  # type: ignore[attr-defined]
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, zero)
    module.__dict__.update(
        mem_get_info=lambda *_: (0, 1),  # (free, total); a total of 0 would be divided by
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
    )
    return module


class CpuPlatform(PlatformBase):
    """One device, `cpu`, without streams, allocator settings, profiler or IPC."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:  # verl passes it to `Tensor.to`, where an index would mean CUDA
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_cpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
