"""How large the demo is, and where it keeps things. A seed's warm-started model is kept; all else is per run."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tracegrad.demo import tasks, tiny_model
from tracegrad.demo.warm_start import WarmStart
from tracegrad.services import Engine
from tracegrad.settings import DATA


@dataclass(frozen=True)
class Plan:
    """The figures of one demo. A step is `tasks_per_step` tasks with `rollouts_per_task` rollouts each."""

    seed: int = 0
    steps: int = 14
    tasks_per_step: int = 12
    rollouts_per_task: int = 8
    n_eval: int = 120
    warm_steps: int = 500
    workers: int = 12
    lr: float = 2e-4
    epochs: int = 2
    root: Path = DATA / "demo"

    def __post_init__(self) -> None:
        if min(self.steps, self.tasks_per_step, self.n_eval, self.warm_steps) < 1 or self.rollouts_per_task < 2:
            raise ValueError("a demo needs at least one step, task and held-out question, and two rollouts a task")

    @property
    def home(self) -> Path:
        """What belongs to this seed."""
        return self.root / f"seed-{self.seed}"

    @property
    def warm_start(self) -> WarmStart:
        """How the model of this seed is made."""
        return WarmStart(seed=self.seed, steps=self.warm_steps)

    @property
    def model(self) -> Path:
        """The warm-started model; it exists only when complete. What it was made from is in its name."""
        made_from = [asdict(self.warm_start), self.n_eval, tasks.SOURCE, tiny_model.SOURCE]
        return self.home / f"model-{hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:12]}"

    @property
    def run(self) -> Path:
        """What belongs to one run: emptied when the next begins."""
        return self.home / "run"

    @property
    def rollouts_per_step(self) -> int:
        """How many rollouts one optimiser step learns from."""
        return self.tasks_per_step * self.rollouts_per_task

    @property
    def engine(self) -> Engine:
        """vLLM in fp32, so that log-probs equal the trainer's; on one thread, which is enough for so small a model."""
        arguments = ("--dtype=float32", "--max-model-len=512", "--max-num-seqs=64", f"--seed={self.seed}")
        environment = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return Engine(self.model, arguments, environment)

    def train_toml(self, sidecar_admin_url: str) -> str:
        """The job that `tracegrad train --watch` runs."""
        return f"""\
job = "demo"

[data]
policy = "policy"
min_rollouts = {self.rollouts_per_step // 2}  # they are rewarded all at once; some may have died before a call
max_rollouts = {self.rollouts_per_step}
settle = "2s"

[credit]
scheme = "identical"

[algorithm]
name = "grpo"
epochs = {self.epochs}

[engine]
model = "{self.model}"
lr = {self.lr}
max_prompt_tokens = 384
max_response_tokens = 128
seed = {self.seed}
checkpoints = "{self.run / "checkpoints"}"

[publish]
sidecar = "{sidecar_admin_url}"
weights = "{self.run / "weights"}"
"""
