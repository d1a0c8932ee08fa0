"""Credit assignment (learning.md Level 1): the rewards of one rollout, shared by its transitions.

Every scheme takes the transitions of one attempt and what each span of its tree was given, and returns one
credit per transition in the same order, as float64: rewards of 0.95 and 0.951 must stay apart until they meet
a batch.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.transitions import Transition

Scheme = Callable[[Sequence[Transition], Mapping[str, float]], NDArray[np.float64]]


def identical(transitions: Sequence[Transition], rewards: Mapping[str, float]) -> NDArray[np.float64]:
    """Every call gets the return: the sum of R(v) over all spans v (LightningRL, arXiv 2508.03680).

    The sum is exact before its one rounding, so equal rewards give equal returns in whatever order they came.
    """
    return np.full(len(transitions), math.fsum(rewards.values()), dtype=np.float64)


SCHEMES: dict[str, Scheme] = {"identical": identical}
"""By the name that `train.toml` uses."""
