"""Do the engine that sampled and the learner that trains hold the same model?

Where a call was sampled by the very weights that the learner holds, both compute the log-probabilities of the same
tokens under the same distribution. They differ by rounding (1e-6 in float32), or something is wrong: other weights,
another model, another template of sampling parameters. Then no gradient would mean anything.
"""

from collections.abc import Sequence

import numpy as np

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
    when a token is further apart than `data.logprob_tolerance`.
    """
    fresh = [index for index, sample in enumerate(samples) if sample.transition.call.policy_version == version]
    if not fresh:
        return {}
    ours = learner.log_probs([rows[index] for index in fresh])
    gaps = [
        np.abs(mine.astype(np.float64) - rows[index].behaviour_logprobs)
        for mine, index in zip(ours, fresh, strict=True)
    ]
    largest = [float(gap.max()) for gap in gaps]
    worst = int(np.argmax(largest))
    if not largest[worst] <= config.data.logprob_tolerance:
        raise TracegradError(
            f"the engine's log-probabilities of version {version} differ from the trainer's by {largest[worst]:.3g} "
            f"in span {samples[fresh[worst]].transition.call.span_id} (data.logprob_tolerance is "
            f"{config.data.logprob_tolerance:g}), so nothing was trained: check that vLLM serves the weights that "
            f"job {config.job!r} trains"
        )
    return {"logprob_max_diff": largest[worst], "logprob_mean_diff": float(np.mean(np.concatenate(gaps)))}
