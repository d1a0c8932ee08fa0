"""Rows: what the engine learns from. One row is one stretch of tokens that the policy sampled after a prompt.

Invariant: the loss of a batch is `sum over rows of weight * (sum over response tokens of the token's loss)`.
A row's weight already holds how losses are averaged, so the engine never divides by rows, tokens or
micro-batches, and splitting a batch in any way changes nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Row:
    """One trained transition: p prompt tokens, then r response tokens.

    `prompt_token_ids`: int64 (p,), as the engine was prompted.
    `response_token_ids`: int64 (r,), as the engine sampled.
    `behaviour_logprobs`: float32 (r,), of the sampled tokens under the policy that sampled them.
    `advantage`: broadcast over the r response tokens.
    `weight`: loss weight of each response token; with `rollout-mean` (report v1, equation 16) it is
    1 / (rollouts in the batch * trainable tokens of the row's rollout).
    """

    prompt_token_ids: NDArray[np.int64]
    response_token_ids: NDArray[np.int64]
    behaviour_logprobs: NDArray[np.float32]
    advantage: float
    weight: float

    def __post_init__(self) -> None:
        if len(self.prompt_token_ids) == 0 or len(self.response_token_ids) == 0:
            raise ValueError("a row needs at least one prompt token and one response token")
        if len(self.behaviour_logprobs) != len(self.response_token_ids):
            raise ValueError("a row needs one behaviour log-probability per response token")
