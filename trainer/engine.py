"""The policy that learns: verl's FSDP2 training worker in this process, on CPU with gloo or on one GPU.

Invariants: `old_log_probs` of the policy ratio are the rows' behaviour log-probabilities, never recomputed ones.
One optimiser step per epoch over all rows. The result of `update` does not depend on the order of the rows, on
`micro_batch_rows` or on padding. A step whose gradient is not finite changes nothing and is an error.

Importing this module imports torch and verl, which takes some seconds.
"""

import trainer.openmp  # noqa: F401 (before torch)

# isort: split
import gc
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from verl.utils import tensordict_utils as tu

from tracegrad.errors import TracegradError
from trainer import engine_state
from trainer.batch import Batch, make_batch, trained_log_probs
from trainer.choices import ROLLOUT_MEAN
from trainer.config import TrainConfig
from trainer.engine_worker import quiet, start_worker
from trainer.loss import METRIC_NAMES, actor_config, policy_loss
from trainer.rows import Row

METRICS = {"loss", "grad_norm", "lr", *METRIC_NAMES.values()}


class Engine:
    """A causal language model with its AdamW optimizer.

    `resume_from`: a directory that `save` wrote. Weights, optimizer state and random state come from there; the
    architecture comes from `config.engine.model`, and all hyper-parameters from `config`.
    Raises SettingsError where model or algorithm cannot be trained, InputError where the checkpoint does not fit.
    """

    def __init__(self, config: TrainConfig, resume_from: Path | None = None) -> None:
        self._config = config
        if config.engine.threads is not None:
            torch.set_num_threads(config.engine.threads)
        torch.manual_seed(config.engine.seed)
        self._worker: Any = start_worker(config.engine)
        self._worker.set_loss_fn(
            partial(
                policy_loss,
                actor_config(config.algorithm, config.engine.micro_batch_rows, config.engine.max_response_tokens),
            )
        )
        if resume_from is not None:
            engine_state.restore(resume_from, self._worker.engine.module, self._worker.engine.optimizer)

    def log_probs(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        """Per row (n_trained,): log-probability of each trained token under the present weights, at temperature 1."""
        if not rows:
            return []
        batch = make_batch(rows, self._config.engine.micro_batch_rows)
        tu.assign_non_tensor(batch.data, compute_loss=False, **self._settings(batch))
        output = self._worker.infer_batch(batch.data)
        return trained_log_probs(output["log_probs"], batch)

    def update(self, rows: Sequence[Row]) -> dict[str, float]:
        """`algorithm.epochs` optimiser steps on all rows. Returns means over the steps.

        `loss`; `grad_norm` before clipping; `lr`; `ppo_kl`: mean of log behaviour - log present over tokens;
        `clip_fraction`: tokens whose ratio was clipped; `dual_clip_fraction`: those at verl's bound for negative
        advantages (ratio 3). Raises TracegradError where a gradient is not finite.
        """
        if not rows:
            raise ValueError("an update needs rows")
        batch = make_batch(rows, self._config.engine.micro_batch_rows)
        if self._config.algorithm.aggregation != ROLLOUT_MEAN:
            del batch.data["rollout_is_weights"]
        tu.assign_non_tensor(
            batch.data,
            global_batch_size=len(rows),
            mini_batch_size=batch.n_entries,
            epochs=self._config.algorithm.epochs,
            seed=self._config.engine.seed,
            dataloader_kwargs={"shuffle": False},
            **self._settings(batch),
        )
        with quiet():
            output = self._worker.train_mini_batch(batch.data)
        metrics = {
            name: float(np.mean(values)) for name, values in tu.get(output, "metrics").items() if name in METRICS
        }
        if not math.isfinite(metrics["grad_norm"]):
            raise TracegradError(
                f"the gradient is not finite (loss {metrics['loss']}), the step was not taken: lower engine.lr, "
                "or look for calls whose log-probabilities are not the policy's"
            )
        return metrics

    def write_weights(self, file: Path) -> None:
        """Write the weights as safetensors under HuggingFace names, a tied lm_head left out. All or nothing."""
        parameters, _ = self._worker.engine.get_per_tensor_param()
        engine_state.write_weights(file, parameters, self._worker.engine.module)

    def save(self, directory: Path) -> None:
        """Write weights, optimizer state and random state, all or nothing. A directory of that name is replaced."""
        engine_state.save(directory, self._worker.engine.module, self._worker.engine.optimizer)

    def close(self) -> None:
        """Give the memory back. The process group stays: a process can start another Engine."""
        self._worker = None
        gc.collect()

    def _settings(self, batch: Batch) -> dict[str, Any]:
        return {
            "temperature": 1.0,
            "calculate_entropy": False,
            "micro_batch_size_per_gpu": batch.micro_batch_rows,
            "max_response_len": batch.longest_response,
        }
