"""Prefix merging: the used samples of a batch as rows in which shared tokens are computed once (learning.md Level 3).

Within one attempt of a rollout, a call continues another where its prompt begins with that call's prompt and response
as token ids. Chains of such calls become one row; where several calls continue the same one, or have equal prompts, the
row branches. Loss and gradient are those of one row per sample.
"""

import math
from collections import Counter

from trainer.merge_report import MergeReport, Pairs
from trainer.packing import Piece, Room, merged, one_by_one
from trainer.rows import Row
from trainer.samples import Sample, Samples
from trainer.transitions import Attempt


def rows_of(
    samples: Samples, *, merge: bool, max_row_tokens: int, branches: bool = True, token_cost: float = math.inf
) -> tuple[list[Row], MergeReport]:
    """The rows of the used samples, weighted so that every rollout counts the same (`rollout-mean`).

    `merge`: otherwise one row per sample, in order. `max_row_tokens`: a merged row stays within it, a single sample may
    not. `branches`: otherwise only chains are merged; `token_cost`: see `trainer.packing.Room`. `Row.samples` are
    indices of `samples.used`.

    A token's weight is 1 / (N * trained tokens of its rollout). N counts all rollouts that have a group, also those
    without signal and those without a sample that is used: a batch in which half the groups are solved takes half a
    step, whatever else is in it.
    """
    used = samples.used
    tokens: Counter[Attempt] = Counter()
    for sample in used:
        tokens[sample.rollout] += len(sample.transition.call.response_token_ids)
    pieces = [_piece(sample, 1.0 / (samples.n_grouped * tokens[sample.rollout])) for sample in used]
    if not merge:
        rows = one_by_one(pieces)
        return rows, MergeReport.of(rows, pieces, Pairs())
    rows, forests = merged(pieces, Room(max_row_tokens, branches, token_cost))
    return rows, MergeReport.of(rows, pieces, Pairs.of([sample.transition.call for sample in used], forests, rows))


def _piece(sample: Sample, weight: float) -> Piece:
    call = sample.transition.call
    return Piece(
        prompt_token_ids=call.prompt_token_ids,
        response_token_ids=call.response_token_ids,
        behaviour_logprobs=call.logprobs,
        advantages=sample.token_advantages,
        weight=weight,
        key=(*sample.rollout, call.policy),
    )
