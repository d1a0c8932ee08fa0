"""An advantage estimator of the user's own: what it returns is checked before anything is trained on it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegrad.errors import TracegradError
from tracegrad.own_function import called
from trainer.measured import Estimator, Measured, Options, PerCall


def own_estimator(name: str, function: Callable[..., Any]) -> Estimator:
    """`function` as an estimator that raises TracegradError, naming it, where it does not return one.

    It may return lists and numbers for arrays. What it raises itself is named, with its line.
    """

    def checked(rollouts: Sequence[Measured], options: Options) -> PerCall:
        returned = _entries(
            name, called(function, f"advantage estimator {name!r}", rollouts, options), len(rollouts), "rollouts"
        )
        return [_of_rollout(name, rollout, part) for rollout, part in zip(rollouts, returned, strict=True)]

    return checked


def _of_rollout(name: str, rollout: Measured, returned: Any) -> list[NDArray[np.float64]]:
    calls = _entries(name, returned, len(rollout.n_tokens), f"calls of a rollout in {rollout.group}")
    return [_of_call(name, part, n_tokens) for part, n_tokens in zip(calls, rollout.n_tokens.tolist(), strict=True)]


def _entries(name: str, returned: Any, n_wanted: int, what: str) -> Sequence[Any]:
    if isinstance(returned, np.ndarray) and returned.ndim:
        returned = list(returned)
    if not isinstance(returned, list | tuple):
        raise _nonsense(
            name, f"{type(returned).__name__} for {n_wanted} {what}; a list with an entry for each is wanted"
        )
    if len(returned) != n_wanted:
        raise _nonsense(name, f"{len(returned)} entries for {n_wanted} {what}")
    return returned


def _of_call(name: str, returned: Any, n_tokens: int) -> NDArray[np.float64]:
    try:
        advantage = np.asarray(returned, np.float64)
    except (TypeError, ValueError) as error:
        raise _nonsense(name, f"{type(returned).__name__} for a call; numbers are wanted") from error
    if advantage.shape not in ((), (n_tokens,)):
        raise _nonsense(
            name,
            f"an array of shape {advantage.shape} for a call of {n_tokens} response tokens; "
            f"shape () or ({n_tokens},) is wanted",
        )
    if not np.all(np.isfinite(advantage)):
        raise _nonsense(name, "advantages that are not finite; take care not to divide by a deviation of 0")
    return advantage


def _nonsense(name: str, what: str) -> TracegradError:
    return TracegradError(f"the advantage estimator {name!r} returned {what}")
