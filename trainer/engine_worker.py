"""verl's TrainingWorker, alone in this process: one rank, no Ray, no port that others could reach.

verl is made to be started by Ray: it reads its rank from the environment and prints as it goes. Both are dealt with
here, so that the rest of the trainer sees an object with methods.
"""

import contextlib
import io
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tracegrad.errors import SettingsError, TracegradError
from trainer.config import EngineConfig

log = logging.getLogger(__name__)

FP32 = "fp32"
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def start_worker(config: EngineConfig) -> Any:
    """A `TrainingWorker` with model and optimizer built. Raises SettingsError where the model cannot be trained."""
    _check_model(config.model)
    with quiet(), _environment(ONE_RANK):
        if not torch.cuda.is_available():
            from trainer.cpu_platform import use_cpu

            use_cpu()
        _join_process_group()
        from verl.workers.engine_workers import TrainingWorker

        from trainer.row_engine import use_row_engine

        use_row_engine()

        try:
            worker = TrainingWorker(_worker_config(config))
            worker.reset()
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise SettingsError(f"the model in {config.model} cannot be loaded: {_first_line(error)}") from error
    return worker


def _worker_config(config: EngineConfig) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig

    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(config.model),
            load_tokenizer=False,
            use_remove_padding=False,  # needs flash-attention
            override_config={"attn_implementation": "sdpa"},
            enable_gradient_checkpointing=False,
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            use_torch_compile=False,
            model_dtype=FP32,
            mixed_precision={"param_dtype": FP32, "reduce_dtype": FP32, "buffer_dtype": FP32},
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=config.micro_batch_rows,
            infer_micro_batch_size_per_gpu=config.micro_batch_rows,
        ),
        optimizer_config=FSDPOptimizerConfig(
            lr=config.lr,
            weight_decay=config.weight_decay,
            clip_grad=config.max_grad_norm,
            lr_scheduler_type="constant",
            lr_warmup_steps=0,
            total_training_steps=1,  # read by schedules that decay only
        ),
        checkpoint_config=CheckpointConfig(),
    )


def _check_model(model: Path) -> None:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if not (model / "config.json").is_file():
        raise SettingsError(f"bad setting engine.model: no model (config.json) in directory {model}")
    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise SettingsError(f"bad setting engine.model: {model} is not a model: {_first_line(error)}") from error
    architectures = config.architectures or []
    if len(architectures) != 1 or architectures[0] not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        found = " and ".join(architectures) or f"{config.model_type} without architecture"
        raise SettingsError(f"bad setting engine.model: {model} is not a causal language model but {found}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _join_process_group() -> None:
    """torch can do this once in a process, so the group outlives its engines."""
    if not dist.is_initialized():
        # gloo listens even when it is alone; without this on the address of the host name.
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        with _environment({"GLOO_SOCKET_IFNAME": loopback} if loopback else {}):
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if dist.get_world_size() != 1:
        raise TracegradError("the engine trains in one process, but this one belongs to a larger torch process group")


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Adds `values` where they are not set. The environment is as before afterwards, whatever verl has put into it."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in values.items() if name not in before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What verl prints in the block goes to our log at level debug; its warnings about absent GPUs vanish."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in ("verl", "torch.fx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed), _environment({"VERL_LOGGING_LEVEL": "ERROR"}):
        warnings.simplefilter("ignore")
        yield
    for line in printed.getvalue().splitlines():
        log.debug("verl said %s", line)
