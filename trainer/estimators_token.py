"""Estimators that give every response token an advantage of its own, whitened over all tokens of the batch.

Each call is a row of its own, as in verl: nothing flows from one call to another of its rollout, that is what credit
is for. Tokens are kept flat, one call after the other, (tokens,): batches of long and short calls cost what they hold.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.estimators_group import dr_grpo
from trainer.measured import Measured, Options, PerCall, require_values

WHITEN_EPSILON = 1e-8


def reinforce_plus_plus(rollouts: Sequence[Measured], options: Options) -> PerCall:
    """The credit at the call's last token, discounted by gamma per token, whitened (Hu et al., arXiv 2501.03262)."""
    n_tokens = _n_tokens(rollouts)
    ends = np.cumsum(n_tokens)
    to_end = np.repeat(ends, n_tokens) - 1 - np.arange(np.sum(n_tokens))
    return _per_call(whitened(np.repeat(_credits(rollouts), n_tokens) * options.gamma**to_end), rollouts)


def reinforce_plus_plus_baseline(rollouts: Sequence[Measured], options: Options) -> PerCall:
    """credit - mu of its group at every token of the call, whitened (Hu et al., arXiv 2501.03262)."""
    centred = np.array([of_call for of_rollout in dr_grpo(rollouts, options) for of_call in of_rollout])
    return _per_call(whitened(np.repeat(centred, _n_tokens(rollouts))), rollouts)


def ppo(rollouts: Sequence[Measured], options: Options) -> PerCall:
    """The advantages of `gae` (PPO, Schulman et al., arXiv 1707.06347). Raises TracegradError without a critic."""
    return gae(rollouts, options)[0]


def gae(rollouts: Sequence[Measured], options: Options) -> tuple[PerCall, PerCall]:
    """Advantages, whitened, and the returns that a critic learns from (Schulman et al., arXiv 1506.02438).

    The credit is the reward of the call's last token:
        delta_t = r_t + gamma V_{t+1} - V_t,    A_t = delta_t + gamma lam A_{t+1},    return_t = A_t + V_t,
    where V and A are 0 after the last token. Raises TracegradError where values are missing.
    """
    require_values(rollouts)
    n_tokens = _n_tokens(rollouts)
    ends = np.cumsum(n_tokens)
    last = ends[n_tokens > 0] - 1
    values = np.concatenate([np.zeros(0), *(of_call for rollout in rollouts for of_call in rollout.values or ())])
    following = np.append(values[1:], 0.0)[: len(values)]
    following[last] = 0.0
    advantages = options.gamma * following - values
    advantages[last] += _credits(rollouts)[n_tokens > 0]
    for before_last in range(1, int(np.max(n_tokens, initial=0))):
        at = ends[n_tokens > before_last] - 1 - before_last
        advantages[at] += options.gamma * options.lam * advantages[at + 1]
    return _per_call(whitened(advantages), rollouts), _per_call(advantages + values, rollouts)


def whitened(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(values - mean) / sqrt(unbiased variance + 1e-8), as verl's masked_whiten; one value alone becomes 0."""
    if len(values) < 2:
        return np.zeros_like(values)
    deviation = float(np.sqrt(np.var(values, ddof=1) + WHITEN_EPSILON))
    return (values - np.mean(values)) / deviation


def _n_tokens(rollouts: Sequence[Measured]) -> NDArray[np.int64]:
    return np.concatenate([rollout.n_tokens for rollout in rollouts])


def _credits(rollouts: Sequence[Measured]) -> NDArray[np.float64]:
    return np.concatenate([rollout.credits for rollout in rollouts])


def _per_call(tokens: NDArray[np.float64], rollouts: Sequence[Measured]) -> PerCall:
    of_calls = iter(np.split(tokens, np.cumsum(_n_tokens(rollouts))[:-1]))
    return [[next(of_calls) for _ in rollout.n_tokens] for rollout in rollouts]
