"""Rows: what the engine learns from. One row is a stretch of tokens that is computed once; some of them are trained.

Invariants: the loss of a batch is `sum over trained tokens of weight * the token's loss`. Weights already hold how
losses are averaged, so the engine never divides by rows, tokens or micro-batches, and neither splitting a batch nor
merging its rows changes anything. The trained tokens of a row are the responses of its samples, one after the other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Branches:
    """How the tokens of a row see each other where it is a tree, laid out depth first, and not one sequence.

    Token j attends to token i where `i <= j <= reach[i]`. Every branch but the first begins with an untrained copy of
    the token that it continues, which stands in for that token: so the token before any other in the row is the one
    that predicts it.

    `positions`: int64 (n,), of each token in its own sequence. `reach`: int64 (n,), the last token that sees it.
    """

    positions: NDArray[np.int64]
    reach: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Row:
    """n tokens of one rollout.

    `token_ids`: int64 (n,). `mask`: bool (n,), which are trained; never the first.
    `behaviour_logprobs`: float32 (n,), of the trained tokens under the policy that sampled them, 0 elsewhere.
    `advantages`, `weights`: float32 (n,), 0 elsewhere; with `rollout-mean` (report v1, equation 16) a weight is
    1 / (rollouts in the batch * trained tokens of the row's rollout).
    `samples`: whose responses the trained tokens are, in this order, by index in what was made into rows.
    `branches`: None where every token follows the one before it.
    """

    token_ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    behaviour_logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]
    weights: NDArray[np.float32]
    samples: tuple[int, ...] = ()
    branches: Branches | None = None

    def __post_init__(self) -> None:
        per_token = [self.mask, self.behaviour_logprobs, self.advantages, self.weights]
        if self.branches is not None:
            per_token += [self.branches.positions, self.branches.reach]
        if any(len(values) != len(self.token_ids) for values in per_token):
            raise ValueError("a row needs one value per token of everything that is told of tokens")
        if not self.mask.any() or self.mask[0]:
            raise ValueError("a row needs a trained token, and a token before the first that is trained")

    @classmethod
    def of_response(
        cls,
        prompt_token_ids: NDArray[np.int64],
        response_token_ids: NDArray[np.int64],
        behaviour_logprobs: NDArray[np.float32],
        *,
        advantage: float | NDArray[np.floating],
        weight: float,
        sample: int = 0,
    ) -> "Row":
        """One transition as a row of its own: the prompt, then the response, whose tokens are trained.

        `advantage`: of every response token, or (r,).
        """
        p, r = len(prompt_token_ids), len(response_token_ids)
        if len(behaviour_logprobs) != r:
            raise ValueError("a row needs one behaviour log-probability per response token")

        def on_response(values: float | NDArray[np.floating]) -> NDArray[np.float32]:
            spread = np.zeros(p + r, np.float32)
            spread[p:] = values
            return spread

        return cls(
            token_ids=np.concatenate([prompt_token_ids, response_token_ids]).astype(np.int64, copy=False),
            mask=np.arange(p + r) >= p,
            behaviour_logprobs=on_response(behaviour_logprobs),
            advantages=on_response(advantage),
            weights=on_response(weight),
            samples=(sample,),
        )

    @property
    def n_trained(self) -> int:
        """How many of its tokens are trained."""
        return int(np.count_nonzero(self.mask))
