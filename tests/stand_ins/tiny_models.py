"""Random language models small enough that a gradient takes milliseconds, and what an optimizer is given of one."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

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


def tiny_model(model_type: str) -> Any:
    """A random model of a type of transformers, as the engine would load it; it is in memory only."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": None}
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    experts |= {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(model_type, **size, **heads, **experts, **tokens, initializer_range=0.3)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


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
