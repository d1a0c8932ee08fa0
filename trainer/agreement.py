"""Do the engine that sampled and the learner that trains hold the same model?

Where a call was sampled by the very weights that the learner holds, both compute the log-probabilities of the same
tokens under the same distribution. They differ by rounding (1e-6 in float32), or something is wrong: other weights,
another model, another template of sampling parameters. Then no gradient would mean anything.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracegrad.errors import TracegradError
from trainer.config import TrainConfig
from trainer.learner import Learner
from trainer.rows import Row
from trainer.samples import Sample


def check_agreement(
    config: TrainConfig, learner: Learner, version: int, samples: Sequence[Sample], rows: Sequence[Row]
) -> dict[str, float]:
    """Metrics of the gap over the tokens that `version` sampled; empty when there are none.

    `samples`: the used ones, of which `rows` were made. `version`: what the learner holds. Raises TracegradError
    when a token is further apart than `gate.logprob_tolerance`.
    """
    fresh = {index for index, sample in enumerate(samples) if sample.transition.call.policy_version == version}
    asked = [row for row in rows if fresh.intersection(row.samples)]
    if not asked:
        return {}
    gaps: dict[int, NDArray[np.float64]] = {}
    for row, ours in zip(asked, learner.log_probs(asked), strict=True):
        gap = np.abs(ours.astype(np.float64) - row.behaviour_logprobs[row.mask])
        ends = np.cumsum([len(samples[index].transition.call.response_token_ids) for index in row.samples])
        gaps.update(zip(row.samples, np.split(gap, ends[:-1]), strict=True))
    of_fresh = {index: gaps[index] for index in sorted(fresh)}
    worst = max(of_fresh, key=lambda index: float(of_fresh[index].max()))
    largest = float(of_fresh[worst].max())
    tolerance = config.gate.logprob_tolerance
    if not all(float(gap.max()) <= tolerance for gap in of_fresh.values()):
        raise TracegradError(
            f"the engine's log-probabilities of version {version} differ from the trainer's by {largest:.3g} "
            f"in span {samples[worst].transition.call.span_id} (gate.logprob_tolerance is {tolerance:g}), so nothing "
            f"was trained: check that vLLM serves the weights that job {config.job!r} trains"
        )
    return {"logprob_max_diff": largest, "logprob_mean_diff": float(np.mean(np.concatenate(list(of_fresh.values()))))}
