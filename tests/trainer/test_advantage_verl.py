"""Where each rollout is one row, every estimator equals verl's function of that name, on random batches."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from measured_rollouts import flat, rollout

from trainer.advantage import ESTIMATORS, Measured, Options, gae

torch = pytest.importorskip("torch", reason="verl's functions need torch")
algorithms = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")

GROUPED = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")


@dataclass(frozen=True)
class Batch:
    """The same numbers for us and for verl, whose tensors are (rows, longest response)."""

    rollouts: list[Measured]
    rewards: Any
    mask: Any
    values: Any
    index: Any

    def ours(self, per_call: list[list[np.ndarray]]) -> np.ndarray:
        """Advantages per response token, also of an estimator that has one per call."""
        of_calls = [np.broadcast_to(of_rollout[0], one.n_tokens) for of_rollout, one in self._with(per_call)]
        return np.concatenate(of_calls)

    def theirs(self, found: Any) -> np.ndarray:
        """verl's numbers of the tokens that the mask selects, row after row."""
        return np.array(found[self.mask.bool()])

    def _with(self, per_call: list[list[np.ndarray]]) -> Any:
        return zip(per_call, self.rollouts, strict=True)


def random_batch(seed: int) -> Batch:
    """Groups of 1 to 6 rollouts, some of them solved by all, responses of 1 to 12 tokens, rewards of any size."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 7, size=random.integers(2, 7))
    n_tokens = random.integers(1, 13, size=sizes.sum())
    scale = float(random.choice([1.0, 0.01, 100.0]))
    names = [f"task {number}" for number, size in enumerate(sizes) for _ in range(size)]
    credits = [1.0 if name == "task 0" else float(random.normal()) * scale for name in names]
    rewards = torch.zeros((len(names), int(n_tokens.max())), dtype=torch.float64)
    mask = torch.zeros(rewards.shape, dtype=torch.int64)
    values = torch.from_numpy(random.normal(size=tuple(rewards.shape)) * scale)
    rollouts = []
    for row, (name, credit, n) in enumerate(zip(names, credits, n_tokens.tolist(), strict=True)):
        rewards[row, n - 1] = credit
        mask[row, :n] = 1
        one = rollout(name, [credit], tokens=[n])
        rollouts.append(replace(one, values=[values[row, :n].numpy()]))
    return Batch(rollouts, rewards, mask, values, np.array(names, dtype=object))


def of_verl(name: str, batch: Batch, options: Options) -> Any:
    config = algorithms.AlgoConfig(gamma=options.gamma, lam=options.lam)
    rewards, mask, index = batch.rewards.clone(), batch.mask, batch.index
    functions: dict[str, Callable[[], Any]] = {
        "grpo": lambda: algorithms.compute_grpo_outcome_advantage(rewards, mask, index),
        "dr_grpo": lambda: algorithms.compute_grpo_outcome_advantage(
            rewards, mask, index, norm_adv_by_std_in_grpo=False
        ),
        "rloo": lambda: algorithms.compute_rloo_outcome_advantage(rewards, mask, index),
        "reinforce_plus_plus": lambda: algorithms.compute_reinforce_plus_plus_outcome_advantage(
            rewards, mask, config=config
        ),
        "reinforce_plus_plus_baseline": lambda: algorithms.compute_reinforce_plus_plus_baseline_outcome_advantage(
            rewards, mask, index
        ),
        "ppo": lambda: algorithms.compute_gae_advantage_return(rewards, batch.values, mask, options.gamma, options.lam),
    }
    return functions[name]()


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "gigpo"])
def test_equals_verl_where_each_rollout_is_one_row(name: str, seed: int) -> None:
    batch = random_batch(seed)
    options = Options(gamma=[1.0, 0.99, 0.9, 0.0][seed % 4], lam=[1.0, 0.95, 0.0][seed % 3])
    theirs, their_returns = of_verl(name, batch, options)
    ours = ESTIMATORS[name].function(batch.rollouts, options)
    np.testing.assert_allclose(batch.ours(ours), batch.theirs(theirs), rtol=1e-6, atol=1e-6)
    if name == "ppo":
        _, our_returns = gae(batch.rollouts, options)
        np.testing.assert_allclose(batch.ours(our_returns), batch.theirs(their_returns), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["ppo", "reinforce_plus_plus"])
def test_calls_of_one_rollout_are_rows_of_their_own(name: str) -> None:
    """Whether two calls are of one rollout or of two changes nothing for what looks at tokens alone."""
    rows = random_batch(3).rollouts
    together = [
        replace(
            first,
            credits=np.concatenate([first.credits, second.credits]),
            states=first.states + second.states,
            n_tokens=np.concatenate([first.n_tokens, second.n_tokens]),
            values=[*(first.values or ()), *(second.values or ())],
        )
        for first, second in zip(rows[::2], rows[1::2], strict=False)
    ]
    options = Options(gamma=0.9, lam=0.8)
    apart = ESTIMATORS[name].function(rows[: 2 * len(together)], options)
    assert flat(ESTIMATORS[name].function(together, options)) == flat(apart)
