"""verl's FSDP2 engine, with log-probabilities computed in one operation.

Without flash-attention verl takes one `logsumexp` per token, forward and backward: a saving of memory on GPUs,
where it never runs in practice, and 30 times the cost of the whole model for a small one on CPU. Here it is one
cross-entropy over the sampled tokens alone. Same numbers, same verl everywhere else.
"""

from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp import FSDPEngineWithLMHead


class CpuEngineWithLMHead(FSDPEngineWithLMHead):
    """Knows padded batches at temperature 1 without entropy, which is what `trainer.engine` sends."""

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """`log_probs`: jagged (rows, tokens); at token t that of token t + 1, and 0 where t + 1 is not sampled."""
        if not output_args["temperature_is_one"] or tu.get(micro_batch, "calculate_entropy", False):
            raise NotImplementedError("temperature and entropy are not computed here")
        logits = output.logits  # (rows, longest, vocabulary)
        input_ids = micro_batch["input_ids"]
        n_tokens = input_ids.offsets().diff()[:, None]
        n_prompt = micro_batch["prompts"].offsets().diff()[:, None]
        position = torch.arange(logits.shape[1], device=logits.device)
        before_sampled = (position >= n_prompt - 1) & (position < n_tokens - 1)  # (rows, longest)
        sampled = -torch.nn.functional.cross_entropy(
            logits[before_sampled].float(), micro_batch["responses"].values(), reduction="none"
        )
        log_probs = torch.zeros(input_ids.values().shape, dtype=sampled.dtype, device=logits.device)
        log_probs = log_probs.masked_scatter(before_sampled[position < n_tokens], sampled)
        return {"log_probs": torch.nested.nested_tensor_from_jagged(log_probs, input_ids.offsets())}
