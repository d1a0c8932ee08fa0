"""verl's FSDP2 engine for rows with branches, with log-probabilities computed in one operation.

Rows that branch need an attention mask of their own, which verl does not make. And without flash-attention verl takes
one `logsumexp` per token, forward and backward: a saving of memory on GPUs, and 30 times the cost of a small model on
CPU. Here it is one cross-entropy over the trained tokens alone. Same numbers, same verl everywhere else.
"""

from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name, get_vendor
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngineWithLMHead

from trainer.batch import attention_mask


def use_row_engine() -> None:
    """Have verl train language models with the engine below, on the device that this process computes on."""
    registered = EngineRegistry._engines["language_model"]["fsdp2"]
    if RowEngineWithLMHead not in registered.values():
        EngineRegistry.register(
            model_type="language_model", backend="fsdp2", device=get_device_name(), vendor=get_vendor()
        )(RowEngineWithLMHead)


class RowEngineWithLMHead(FSDPEngineWithLMHead):
    """Knows padded batches at temperature 1 without entropy, which is what `trainer.engine` sends."""

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """verl's, with the attention of rows that branch where there are any."""
        inputs, arguments = super().prepare_model_inputs(micro_batch=micro_batch)
        mask = attention_mask(micro_batch["reach"]) if "reach" in micro_batch else None
        if mask is not None:
            inputs["attention_mask"] = mask
        return inputs, arguments

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """`log_probs`: jagged (rows, tokens); at token t that of token t + 1, and 0 where t + 1 is not trained."""
        if not output_args["temperature_is_one"] or tu.get(micro_batch, "calculate_entropy", False):
            raise NotImplementedError("temperature and entropy are not computed here")
        input_ids = micro_batch["input_ids"]
        row, token = micro_batch["response_mask"].nonzero(as_tuple=True)
        token = token + micro_batch["prompts"].offsets().diff()[row]
        flat = input_ids.offsets()[row] + token
        trained = -torch.nn.functional.cross_entropy(
            output.logits[row, token - 1].float(), input_ids.values()[flat], reduction="none"
        )
        log_probs = torch.zeros(input_ids.values().shape, dtype=trained.dtype, device=trained.device)
        log_probs = log_probs.index_put((flat - 1,), trained)
        return {"log_probs": torch.nested.nested_tensor_from_jagged(log_probs, input_ids.offsets())}
