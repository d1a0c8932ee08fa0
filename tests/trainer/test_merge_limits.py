"""What may be merged: losses and models whose numbers merging would change are left alone, and said to be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from call_trees import piece, seen_from
from tiny_models import tiny_model

from tracegrad.errors import SettingsError
from trainer.batch import attention_mask, make_batch
from trainer.config import TrainConfig
from trainer.merge_limits import BRANCHING_MODELS, merge_limits
from trainer.packing import Room, merged

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """A function that makes a job's configuration, with a model of type llama unless `model` says otherwise."""

    def make(
        model: dict[str, Any] | None = None, engine: dict[str, Any] | None = None, **algorithm: Any
    ) -> TrainConfig:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **(model or {})}))
        return TrainConfig.model_validate({"engine": {"model": tmp_path, **(engine or {})}, "algorithm": algorithm})

    return make


def test_rows_are_as_long_as_the_longest_call_may_be(config: Any) -> None:
    limits = merge_limits(config(engine={"max_prompt_tokens": 100, "max_response_tokens": 20}))
    assert (limits.merge, limits.branches, limits.max_row_tokens, limits.why) == (True, True, 120, "")


def test_a_token_of_a_larger_model_costs_more_beside_attention(config: Any) -> None:
    """Of Qwen2.5 0.5B: its parameters, of which the embedding is multiplied once, over 2 * 24 * 896."""
    qwen = {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    qwen |= {"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936}
    assert merge_limits(config(qwen)).token_cost == pytest.approx(494e6 / (2 * 24 * 896), rel=0.01)
    assert merge_limits(config(qwen | {"hidden_size": None})).token_cost == 0.0


def test_merging_can_be_switched_off(config: Any) -> None:
    limits = merge_limits(config(engine={"merge_prefixes": False}, loss="gspo"))
    assert (limits.merge, limits.why) == (False, "engine.merge_prefixes = false")


@pytest.mark.parametrize(
    ("algorithm", "setting"),
    [
        ({"loss": "gspo"}, 'algorithm.loss = "gspo"'),
        ({"loss": "sapo", "aggregation": "seq-mean-token-mean"}, 'algorithm.loss = "sapo"'),
        ({"aggregation": "seq-mean-token-mean"}, 'algorithm.aggregation = "seq-mean-token-mean"'),
        ({"aggregation": "seq-mean-token-sum"}, 'algorithm.aggregation = "seq-mean-token-sum"'),
        ({"aggregation": "seq-mean-token-sum-norm"}, 'algorithm.aggregation = "seq-mean-token-sum-norm"'),
    ],
)
def test_losses_of_sequences_are_not_merged(config: Any, algorithm: dict[str, str], setting: str) -> None:
    """Where the file asks for it, it is refused."""
    limits = merge_limits(config(**algorithm))
    assert not limits.merge
    assert limits.why == f"{setting} looks at whole sequences, and a merged row is not one"
    with pytest.raises(
        SettingsError, match=r"bad setting engine\.merge_prefixes = true: .*; use false, or leave it out"
    ):
        merge_limits(config(engine={"merge_prefixes": True}, **algorithm))


@pytest.mark.parametrize("aggregation", ["rollout-mean", "token-mean", "token-sum"])
def test_losses_of_tokens_are_merged(config: Any, aggregation: str) -> None:
    assert merge_limits(config(engine={"merge_prefixes": True}, aggregation=aggregation)).merge


@pytest.mark.parametrize(
    ("model", "merge", "branches", "why"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, False, False, "encoding (dynamic) depends"),
        ({"rope_scaling": {"type": "longrope"}}, False, False, "encoding (longrope) depends"),
        ({"rope_scaling": {"rope_type": "yarn"}}, True, True, ""),
        ({"model_type": "mamba"}, True, False, "not known to be exact for models of type mamba"),
        ({"model_type": "mistral"}, True, False, "do not attend to all tokens"),
        ({"model_type": "mistral", "sliding_window": None}, True, True, ""),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, True, True, ""),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}, True, False, "do not attend"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, True, False, "do not attend"),
    ],
)
def test_models_are_given_what_they_can_compute(
    config: Any, model: dict[str, Any], merge: bool, branches: bool, why: str
) -> None:
    limits = merge_limits(config(model))
    assert (limits.merge, limits.branches) == (merge, branches)
    assert (limits.why == "") == (why == "")
    assert why in limits.why


@pytest.mark.parametrize("model_type", sorted(BRANCHING_MODELS))
def test_a_branch_is_exact_in_every_model_type_that_is_listed(model_type: str) -> None:
    """Each token's logits in a tree are those of its own sequence alone."""
    model = tiny_model(model_type)
    told, first, second = [1, 2, 3, 4], [5, 6], [7, 8, 9]
    calls = [(told, first), (told, second), (told + first + second, first), (told + first + first, second)]
    (row,), _ = merged([piece(*call, number) for number, call in enumerate(calls)], Room(100))
    assert row.branches is not None
    ids = torch.from_numpy(row.token_ids)
    with torch.no_grad():
        together = model(
            input_ids=ids[None],
            attention_mask=attention_mask(make_batch([row], 1).data["reach"]),
            position_ids=torch.from_numpy(row.branches.positions)[None],
        ).logits[0]
        for token in np.flatnonzero(row.mask) - 1:
            alone = model(input_ids=ids[seen_from(row, token)][None]).logits[0, -1]
            torch.testing.assert_close(together[token], alone, rtol=0, atol=3e-5)
