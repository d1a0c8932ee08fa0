"""What `train.toml` and the command line let people choose from, by name, without loading what it stands for."""

from typing import Literal

SCHEME_NAMES = ("identical", "discounted", "step", "hierarchical")

ESTIMATOR_NAMES = (
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "ppo",
    "gigpo",
)

ROLLOUT_MEAN = "rollout-mean"
AGGREGATIONS = (
    ROLLOUT_MEAN,
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "cispo")
"""Those of verl's policy losses that are computed right here."""
UNSUPPORTED_LOSSES = {
    "geo_mean": "verl averages it inside a micro-batch, so its result depends on micro_batch_rows",
    "bypass_mode": "it needs verl's rollout correction",
    "dro": "it needs dro_beta",
}

ESTIMATORS_WITH: dict[str, tuple[str, ...]] = {
    "gamma": ("reinforce_plus_plus", "ppo"),
    "lam": ("ppo",),
    "step_weight": ("gigpo",),
    "f_norm": ("gigpo",),
    "singleton": ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "gigpo"),
}
"""Options of advantages to the estimators that look at them; one of the user's own may look at all."""

ErrorType = Literal[
    "exception",
    "timeout",
    "cancelled",
    "upstream_error",
    "lost",
    "tool_error",
    "malformed_tool_call",
    "truncation",
    "refusal",
    "context_overflow",
]
"""How a rollout can fail (the first five), and how a call can."""

OnFailure = Literal["drop", "mask", "penalize", "keep"]
"""`drop`: as if it had never been. `mask`: it counts in what others are measured against, and is not trained on.
`penalize`: its reward is lowered by the penalty. `keep`: it is what it is."""
