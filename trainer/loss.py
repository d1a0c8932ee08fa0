"""The policy loss of one micro-batch: verl's losses, with each row's own weight per token.

With `aggregation = "rollout-mean"` the loss of a batch is `sum over rows of weight * sum of token losses`. verl has
what that takes: its losses multiply each token's loss by `rollout_is_weights`, and its mode `token-sum` adds them up
without dividing. So the result is exact for any loss (none has to be linear in the advantage), and does not depend on
micro-batches. Every other `aggregation` is one of verl's own modes and ignores the rows' weights.
"""

from typing import Any

import torch
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import FSDPActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from trainer.algorithm_config import AlgorithmConfig
from trainer.choices import ROLLOUT_MEAN

METRIC_NAMES = {
    "actor/ppo_kl": "ppo_kl",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/pg_clipfrac_lower": "dual_clip_fraction",
}
"""verl's metric -> ours. All are means over the trained tokens of a batch."""


def actor_config(algorithm: AlgorithmConfig, micro_batch_rows: int, max_response_tokens: int) -> FSDPActorConfig:
    """verl's form of `[algorithm]`: no KL term, no entropy term, no dynamic batches."""
    mode = "token-sum" if algorithm.aggregation == ROLLOUT_MEAN else algorithm.aggregation
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=micro_batch_rows,
        clip_ratio_low=algorithm.clip_low,
        clip_ratio_high=algorithm.clip_high,
        policy_loss=PolicyLossConfig(loss_mode=algorithm.loss),
        loss_agg_mode=mode,
        loss_scale_factor=max_response_tokens,  # read by seq-mean-token-sum-norm only
        entropy_coeff=0.0,
        use_kl_loss=False,
        use_torch_compile=False,
    )


def policy_loss(
    config: FSDPActorConfig, model_output: Any, data: Any, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Metric]]:
    """verl's `ppo_loss`, with metrics that are means over the batch's tokens.

    verl's are means over a micro-batch that it then averages over micro-batches of different sizes.
    """
    loss, metrics = ppo_loss(config, model_output, data, dp_group)
    share = float(data["response_mask"].sum()) / data["batch_num_tokens"]
    return loss, {
        METRIC_NAMES[name]: Metric(AggregationType.SUM, share * metric.aggregate())
        for name, metric in metrics.items()
        if name in METRIC_NAMES
    }
