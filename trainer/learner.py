"""The seam between a job and the engine that trains: what a job asks of it, and nothing else."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.rows import Row


class Learner(Protocol):
    """A model with its optimizer. The one implementation is `trainer.engine.Engine`, on verl."""

    def log_probs(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        """Per row (r,): log-probabilities of its response tokens under the present weights."""

    def update(self, rows: Sequence[Row]) -> dict[str, float]:
        """Learn from all rows, once per epoch; returns metrics."""

    def write_weights(self, file: Path) -> None:
        """Write the present weights as safetensors with HuggingFace names, all or nothing."""

    def save(self, directory: Path) -> None:
        """Write all that is needed to continue, all or nothing."""

    def close(self) -> None:
        """Give processes and memory back."""


StartLearner = Callable[[TrainConfig, Path | None], Learner]
"""Makes a learner from `engine.model`, or from the checkpoint given."""


def start_verl(config: TrainConfig, resume_from: Path | None) -> Learner:
    """The real engine. Importing verl takes 10 s, so this happens only when there is something to train."""
    from trainer.engine import Engine

    return Engine(config, resume_from)
