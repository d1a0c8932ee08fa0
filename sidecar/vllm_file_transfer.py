"""vLLM's weight transfer from a file, as of vLLM 0.32. Runs inside vLLM's workers.

Invariants: a file that is refused changes nothing, the old weights go on serving. `update_weights` takes one complete
file and swaps all of it in one call, so between calls the model always computes; `start` and `finish` only frame
it and stamp the version. The caller pauses generation around it and drops the prefix cache afterwards.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from sidecar import weight_file
from tracegrad.errors import InputError, TracegradError

log = logging.getLogger("vllm.tracegrad")  # under "vllm", whose handler prints it
ROOT_VARIABLE = "TRACEGRAD_WEIGHTS_ROOT"


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """`root`: files must lie under it; where it is empty, under $TRACEGRAD_WEIGHTS_ROOT, or anywhere without that."""

    root: str = ""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """`path`: a .safetensors file with HuggingFace names; `sha256`: of its bytes, checked when given."""

    path: str
    sha256: str | None = None


class FileWeightTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Reads the file in each worker; vLLM's own loaders take the worker's shard of it."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo
    supports_draft_weight_update = False

    root: Path | None = None
    served: dict[str, weight_file.TensorInfo] | None = None
    """What the model that vLLM was started with consists of; None where that cannot be read."""

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Set the root. May be called again."""
        root = Path(init_info.root or os.environ.get(ROOT_VARIABLE, "/"))
        if not root.is_absolute() or not root.is_dir():
            raise InputError(f"root {root} of the weights is not an absolute path of a directory")
        self.served = self.served or _served_tensors(self.model_config)
        self.root = root

    def start_weight_update(self) -> None:
        """Nothing: until the file is proved good the model stays as it is."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Check the file, then load it. Raises InputError where nothing was changed."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """See `update_weights`."""
        self._load(self._checked(update_info))

    def finish_weight_update(self) -> None:
        """Nothing: vLLM stamps the version."""

    def shutdown(self) -> None:
        """Nothing is held between updates."""

    def _checked(self, update_info: FileUpdateInfo) -> Path:
        if self.root is None:
            raise TracegradError("weight transfer is not initialised: POST /init_weight_transfer_engine first")
        file = weight_file.resolve_under(self.root, update_info.path)
        if update_info.sha256 is not None:
            weight_file.check_sha256(file, update_info.sha256)
        new = weight_file.read_header(file)
        if self.served is not None:
            tied = bool(self.model_config.hf_text_config.tie_word_embeddings)
            weight_file.check_same_tensors(new, self.served, tied=tied, file=file)
        return file

    def _load(self, file: Path) -> None:
        expected = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)
        try:
            loaded = self.model.load_weights(_tensors(file))
        except BaseException:
            _abandon_reload(self.model)
            raise
        with _expecting_idle_layers():
            finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            _repack_heads(self.model)
        if missing := expected - loaded:
            raise TracegradError(f"{file} left {min(missing)} and {len(missing) - 1} more parameters as they were")


def _tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as content:
        for name in content.keys():  # noqa: SIM118 (not a mapping)
            yield name, content.get_tensor(name)


def _served_tensors(model_config: Any) -> dict[str, weight_file.TensorInfo] | None:
    """From the directory that vLLM was started with; for a name on the Hub, from its place in the local cache."""
    directory = Path(model_config.model)
    try:
        if not directory.is_dir():
            from huggingface_hub import snapshot_download

            directory = Path(
                snapshot_download(model_config.model, revision=model_config.revision, local_files_only=True)
            )
        tensors = weight_file.served_tensors(directory)
    except (OSError, ValueError, InputError) as error:
        log.warning("weights will not be compared with those of %s, which cannot be read: %s", directory, error)
        return None
    if tensors is None:
        log.warning("weights will not be compared with those of %s, which holds no safetensors", directory)
    return tensors


@contextmanager
def _expecting_idle_layers() -> Iterator[None]:
    """vLLM warns of each layer that has constants but no weights to load. What was loaded is checked here instead."""
    logger = logging.getLogger(finalize_layerwise_reload.__module__)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _repack_heads(model: torch.nn.Module) -> None:
    """On CPU vLLM multiplies by a packed copy of each weight, made when the layer is loaded. A head that is tied to
    the embedding is never loaded itself, so its copy would stay that of the old weights."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


def _abandon_reload(model: torch.nn.Module) -> None:
    """After a load that broke off: layers not reached get their old tensors back, and nothing stays buffered, which
    the next update would count as its own."""
    from vllm.model_executor.model_loader.reload import layerwise

    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
        info.reset()
    model._do_torchao_reload = getattr(model, "_original_do_torchao_reload", False)
