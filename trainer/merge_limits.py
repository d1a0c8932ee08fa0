"""What may be merged: merging saves time and changes nothing, or it is not done.

Losses that look at whole sequences take a row for one, so merged rows would mean something else to them. A model whose
layers do not all attend to everything before a token cannot be told what a branch sees, and one whose position encoding
depends on how long a row is would compute other numbers in a longer one.
"""

import json
from dataclasses import dataclass
from typing import Any

from tracegrad.errors import SettingsError
from trainer.algorithm_config import AlgorithmConfig
from trainer.config import TrainConfig

SEQUENCE_LOSSES = frozenset({"gspo", "sapo", "geo_mean"})
"""verl's policy losses that are of a sequence: its ratio or its mean."""

SEQUENCE_AGGREGATIONS = "seq-mean-"
"""What the names of aggregations that count sequences begin with."""

BRANCHING_MODELS = frozenset(
    {
        "apertus",
        "arcee",
        "ernie4_5",
        "gemma",
        "glm",
        "glm4",
        "granite",
        "granitemoe",
        "helium",
        "llama",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "olmoe",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
"""Model types of transformers that take positions and an attention mask of any form, as a test shows of each."""

LENGTH_DEPENDENT = frozenset({"dynamic", "longrope"})
"""Position encodings that are others in longer rows."""


@dataclass(frozen=True)
class MergeLimits:
    """`merge`: whether rows may be merged at all. `branches`: whether they may branch. `why`: if not, in a sentence.

    `max_row_tokens`: as much as the longest single call may have. So a chain is never cut, and a tree needs no more
    memory than a call could. `token_cost`: of the model, as `trainer.packing.Room` weighs it against attention.
    """

    max_row_tokens: int
    merge: bool = True
    branches: bool = True
    why: str = ""
    token_cost: float = 0.0


def merge_limits(config: TrainConfig) -> MergeLimits:
    """What a job may merge. Raises SettingsError where its file asks for what would change the loss."""
    most = config.engine.max_prompt_tokens + config.engine.max_response_tokens
    if not config.engine.merge_prefixes:
        return MergeLimits(most, merge=False, branches=False, why="engine.merge_prefixes = false")
    if setting := _of_sequences(config.algorithm):
        why = f"{setting} looks at whole sequences, and a merged row is not one"
        if "merge_prefixes" in config.engine.model_fields_set:
            raise SettingsError(f"bad setting engine.merge_prefixes = true: {why}; use false, or leave it out")
        return MergeLimits(most, merge=False, branches=False, why=why)
    model = json.loads((config.engine.model / "config.json").read_text())
    if (encoding := _position_encoding(model)) in LENGTH_DEPENDENT:
        why = f"the model's position encoding ({encoding}) depends on how long a row is"
        return MergeLimits(most, merge=False, branches=False, why=why)
    if why := _no_branches(model):
        return MergeLimits(most, branches=False, why=why)
    return MergeLimits(most, token_cost=_token_cost(model))


def _of_sequences(algorithm: AlgorithmConfig) -> str:
    if algorithm.loss in SEQUENCE_LOSSES:
        return f'algorithm.loss = "{algorithm.loss}"'
    if algorithm.aggregation.startswith(SEQUENCE_AGGREGATIONS):
        return f'algorithm.aggregation = "{algorithm.aggregation}"'
    return ""


def _no_branches(model: dict[str, Any]) -> str:
    if model.get("model_type") not in BRANCHING_MODELS:
        return f"branches are not known to be exact for models of type {model.get('model_type')}"
    if _has_windows(model):
        return "the model has layers that do not attend to all tokens before one"
    return ""


def _position_encoding(model: dict[str, Any]) -> str:
    """The one that depends on lengths, if any does: models with layers of several kinds tell one for each."""
    told = [model[name] for name in ("rope_parameters", "rope_scaling") if isinstance(model.get(name), dict)]
    told += [value for values in told for value in values.values() if isinstance(value, dict)]
    kinds = {str(values.get("rope_type", values.get("type", ""))) for values in told}
    return next(iter(sorted(kinds & LENGTH_DEPENDENT)), "default")


def _has_windows(model: dict[str, Any]) -> bool:
    if kinds := model.get("layer_types"):
        return any(kind != "full_attention" for kind in kinds)
    of_type = 4096 if model["model_type"] == "mistral" else None  # what transformers takes where none is written
    return model.get("sliding_window", of_type) is not None and model.get("use_sliding_window", True)


def _token_cost(model: dict[str, Any]) -> float:
    """Multiplications per token in weights, over those per pair of tokens in attention; 0 where a size is not told.

    Attention multiplies each dimension of every head and layer twice: query with key, weight with value.
    """
    try:
        width, layers, heads = model["hidden_size"], model["num_hidden_layers"], model["num_attention_heads"]
        of_head = model.get("head_dim") or width / heads
        attention = 2 * width * of_head * (heads + model.get("num_key_value_heads", heads))
        inner = model.get("num_experts_per_tok", 1) * model.get("moe_intermediate_size", model["intermediate_size"])
        weights = layers * (attention + 3 * width * inner) + width * model["vocab_size"]
        return float(weights / (2 * layers * heads * of_head))
    except (KeyError, TypeError, ZeroDivisionError):
        return 0.0
