"""Credit assignment (learning.md Level 1): the rewards of one rollout, shared by its calls over the span tree.

Every scheme takes one execution and returns one credit per transition in the same order, as float64: rewards of 0.95
and 0.951 must stay apart until they meet a batch. Rewards go to the spans that they name, never by time.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tracegrad.errors import TracegradError
from tracegrad.own_function import called, is_own, own_function
from trainer.spans import SpanTree
from trainer.transitions import Transition


@dataclass(frozen=True, eq=False)
class Execution:
    """One attempt as credit sees it.

    `transitions`: the selected ones, of one policy, by start and span id. `rewards`: R(v), span id to the sum of its
    newest rewards, of every span; '' stands for a root span that has not arrived. `requests`: tool span to
    the call that asked for it. `gamma`: discount per call.
    """

    transitions: Sequence[Transition]
    rewards: Mapping[str, float]
    tree: SpanTree
    requests: Mapping[str, str]
    gamma: float

    @cached_property
    def moved_rewards(self) -> dict[str, float]:
        """R'(v): the rewards, those of tool spans given to the calls that asked for the tools."""
        moved: dict[str, list[float]] = defaultdict(list)
        for span_id, reward in self.rewards.items():
            moved[self.requests.get(span_id, span_id)].append(reward)
        return {span_id: math.fsum(rewards) for span_id, rewards in moved.items()}

    @property
    def own_rewards(self) -> list[float]:
        """R'(c) of each transition: what was given to the call itself and to the tools that it asked for."""
        return [self.moved_rewards.get(transition.call.span_id, 0.0) for transition in self.transitions]

    @property
    def ret(self) -> float:
        """The return: the sum of all rewards, exact before its one rounding, so in whatever order they came."""
        return math.fsum(self.rewards.values())


Scheme = Callable[[Execution], NDArray[np.float64]]


def identical(execution: Execution) -> NDArray[np.float64]:
    """Every call gets the return: the sum of R(v) over all spans v (LightningRL, arXiv 2508.03680)."""
    return np.full(len(execution.transitions), execution.ret, dtype=np.float64)


def discounted(execution: Execution) -> NDArray[np.float64]:
    """credit(c_t) = sum_{k>=t} gamma^(k-t) r_k, where what was given to no selected call is added to the last r_T."""
    rewards = execution.own_rewards
    if not rewards:
        return np.zeros(0)
    rewards[-1] = math.fsum([*execution.rewards.values(), *(-reward for reward in rewards[:-1])])
    credits = np.zeros(len(rewards))
    following = 0.0
    for index in range(len(rewards) - 1, -1, -1):
        following = rewards[index] + execution.gamma * following
        credits[index] = following
    return credits


def step(execution: Execution) -> NDArray[np.float64]:
    """credit(c) = R(c) + the rewards of the tool spans that c asked for."""
    return np.array(execution.own_rewards, dtype=np.float64)


def hierarchical(execution: Execution) -> NDArray[np.float64]:
    """credit(c) = sum over v in {c and its ancestors} of gamma^d(v,c) R'(v).

    d(v,c): how many selected calls at or under v start later than c.
    """
    tree = execution.tree
    root = tree.root_span_id
    calls = [transition.call for transition in execution.transitions]
    above = [[call.span_id, *tree.ancestors(call.span_id)] for call in calls]
    if not root:
        above = [[*spans, ""] for spans in above]
    starts: dict[str, list[int]] = defaultdict(list)
    for call, spans in zip(calls, above, strict=True):  # in order of start, so each list is sorted
        for span_id in spans:
            starts[span_id].append(call.started_ns)
    rewards = execution.moved_rewards
    unplaced = rewards.get("", 0.0) if root else 0.0
    credits = np.zeros(len(calls))
    for index, (call, spans) in enumerate(zip(calls, above, strict=True)):
        shares = []
        for span_id in spans:
            reward = rewards.get(span_id, 0.0) + (unplaced if span_id == root else 0.0)
            if reward:
                later = len(starts[span_id]) - bisect_right(starts[span_id], call.started_ns)
                shares.append(execution.gamma**later * reward)
        credits[index] = math.fsum(shares)
    return credits


SCHEMES: dict[str, Scheme] = {
    "identical": identical,
    "discounted": discounted,
    "step": step,
    "hierarchical": hierarchical,
}
"""By the name that `train.toml` uses."""


def scheme_named(name: str) -> Scheme:
    """A scheme of ours, or a user's own as `module:function`. Raises SettingsError where there is none of that name."""
    if not is_own(name):
        return SCHEMES[name]
    function = own_function(name, "credit scheme")

    def checked(execution: Execution) -> NDArray[np.float64]:
        answer = called(function, f"credit scheme {name!r}", execution)
        try:
            credits = np.asarray(answer, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise _nonsense(name, execution, f"{type(answer).__name__} of something else ({error})") from error
        if credits.shape != (len(execution.transitions),):
            raise _nonsense(name, execution, f"an array of shape {credits.shape}")
        if not np.all(np.isfinite(credits)):
            raise _nonsense(name, execution, "numbers that are not finite")
        return credits

    return checked


def _nonsense(name: str, execution: Execution, returned: str) -> TracegradError:
    return TracegradError(
        f"the credit scheme {name!r} must return one finite number for each of the {len(execution.transitions)} "
        f"transitions, not {returned}: correct the function"
    )
