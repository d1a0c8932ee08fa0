"""How large the demo is, and where it keeps things. A seed's warm-started model is kept; all else is per run."""

from dataclasses import dataclass
from pathlib import Path

from tracegrad.settings import DATA


@dataclass(frozen=True)
class Plan:
    """The figures of one demo. A step is `tasks_per_step` tasks with `rollouts_per_task` rollouts each."""

    seed: int = 0
    steps: int = 14
    tasks_per_step: int = 12
    rollouts_per_task: int = 8
    n_eval: int = 120
    workers: int = 12
    lr: float = 2e-4
    epochs: int = 2
    root: Path = DATA / "demo"

    def __post_init__(self) -> None:
        if min(self.steps, self.tasks_per_step, self.n_eval) < 1 or self.rollouts_per_task < 2:
            raise ValueError("a demo needs at least one step, task and held-out question, and two rollouts a task")

    @property
    def home(self) -> Path:
        """What belongs to this seed."""
        return self.root / f"seed-{self.seed}"

    @property
    def model(self) -> Path:
        """The warm-started model; it exists only when complete."""
        return self.home / "model"

    @property
    def run(self) -> Path:
        """What belongs to one run: emptied when the next begins."""
        return self.home / "run"

    @property
    def rollouts_per_step(self) -> int:
        """How many rollouts one optimiser step learns from."""
        return self.tasks_per_step * self.rollouts_per_task

    @property
    def vllm_arguments(self) -> tuple[str, ...]:
        """vLLM's, beside those that every engine gets: fp32, so that log-probs equal the trainer's."""
        return ("--dtype=float32", "--max-model-len=512", "--max-num-seqs=64", f"--seed={self.seed}")

    def train_toml(self, sidecar_admin_url: str) -> str:
        """The job that `tracegrad train --watch` runs."""
        return f"""\
job = "demo"

[data]
policy = "policy"
min_rollouts = {self.rollouts_per_step // 2}  # they are rewarded all at once; some may have died before a call
max_rollouts = {self.rollouts_per_step}

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
