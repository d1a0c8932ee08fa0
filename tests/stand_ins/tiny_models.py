"""Random language models small enough that a gradient takes milliseconds, and what an optimizer is given of one."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trainer.engine import Engine

VOCABULARY = 61


def write_llama(directory: Path, **changes: Any) -> Path:
    """A random Llama of 20k parameters, untied unless `changes` say so."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    given = {**shape, **heads, "tie_word_embeddings": False, "initializer_range": 0.3, **changes}
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **given)).save_pretrained(directory)
    return directory


class Recorder:
    """Keeps the gradients that the engine's optimizer is given."""

    def __init__(self, engine: Engine) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []
        verl = engine._worker.engine

        def record(*_: Any) -> None:
            named = verl.module.named_parameters()
            self.steps.append({name: parameter.grad.full_tensor().clone() for name, parameter in named})

        self._hook = verl.optimizer.register_step_pre_hook(record)

    def remove(self) -> None:
        """Keep no more."""
        self._hook.remove()
