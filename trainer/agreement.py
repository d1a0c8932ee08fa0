"""Do the engine that sampled and the learner that trains hold the same model?

Where a call was sampled by the very weights that the learner holds, both compute the log-probabilities of the same
tokens under the same distribution. They differ by rounding (1e-6 in float32), or something is wrong: other weights,
another model, another template of sampling parameters. Then a gradient of that call would mean nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainer.learner import Learner
from trainer.rows import Row
from trainer.samples import Sample, Samples

LOGPROB_MISMATCH = "logprob_mismatch"
NOT_A_NUMBER = 1e9
"""Stands for the gap of a log-prob that is none: larger than any, and every record can hold it."""


@dataclass(frozen=True, eq=False)
class Agreement:
    """`gaps`: span id of each call that was computed again to its largest difference. `mean_diff`: over their tokens.

    `tolerance`: what a gap may be.
    """

    gaps: Mapping[str, float]
    mean_diff: float
    tolerance: float

    @property
    def max_diff(self) -> float:
        """The largest difference of all."""
        return max(self.gaps.values())

    @property
    def mismatched(self) -> set[str]:
        """Span ids of the calls that were sampled from something else than the learner holds."""
        return {span_id for span_id, gap in self.gaps.items() if gap > self.tolerance}

    def metrics(self) -> dict[str, float]:
        """As metrics of a step."""
        return {"logprob_max_diff": self.max_diff, "logprob_mean_diff": self.mean_diff}

    def applied(self, samples: Samples) -> Samples:
        """The samples without those that mismatch, which stay in everything that the others are measured by."""
        mismatched = self.mismatched
        if not mismatched:
            return samples
        return replace(
            samples,
            all=[
                replace(sample, drop_reason=LOGPROB_MISMATCH)
                if sample.used and sample.transition.call.span_id in mismatched
                else sample
                for sample in samples.all
            ],
        )


def agreement(
    learner: Learner, version: int, samples: Sequence[Sample], rows: Sequence[Row], tolerance: float
) -> Agreement | None:
    """How far the two are apart on every call that `version`, which the learner holds, sampled; None without any.

    `samples`: the used ones, of which `rows` were made. Merged rows give the same numbers as one row per call, and
    less is to be computed.
    """
    fresh = {index for index, sample in enumerate(samples) if sample.transition.call.policy_version == version}
    asked = [row for row in rows if fresh.intersection(row.samples)]
    if not asked:
        return None
    gaps: dict[int, NDArray[np.float64]] = {}
    for row, ours in zip(asked, learner.log_probs(asked), strict=True):
        gap = np.abs(ours.astype(np.float64) - row.behaviour_logprobs[row.mask])
        gap = np.nan_to_num(gap, nan=NOT_A_NUMBER, posinf=NOT_A_NUMBER)
        ends = np.cumsum([len(samples[index].transition.call.response_token_ids) for index in row.samples])
        gaps.update(zip(row.samples, np.split(gap, ends[:-1]), strict=True))
    of_fresh = {samples[index].transition.call.span_id: gaps[index] for index in sorted(fresh)}
    return Agreement(
        gaps={span_id: float(gap.max()) for span_id, gap in of_fresh.items()},
        mean_diff=float(np.mean(np.concatenate(list(of_fresh.values())))),
        tolerance=tolerance,
    )
