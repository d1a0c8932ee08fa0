"""Rows of samples: weights count rollouts, and the report says what was merged and what was not."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainer.merging import rows_of
from trainer.samples import Sample, Samples
from trainer.transitions import Call, Transition

MakeCall = Callable[..., Call]

O1, A1, O2, A2, O3, A3 = [1, 2], [3], [4, 5], [6, 7], [8], [9]


@pytest.fixture(scope="session")
def samples(make_call: MakeCall) -> Callable[..., Samples]:
    """A function that makes samples of calls `(prompt, response, changes)`, in the order in which they started."""

    def make(*calls: tuple[Any, ...], dropped: tuple[int, ...] = (), n_grouped: int = 1) -> Samples:
        found = []
        for number, (prompt, response, *changes) in enumerate(calls):
            call = make_call(f"s{number}", number, response_token_ids=np.array(response, np.int64), **dict(*changes))
            logprobs = np.full(len(response), -1.0 - number, np.float32)
            call = dataclasses.replace(call, prompt_token_ids=np.array(prompt, np.int64), logprobs=logprobs)
            reason = "stale" if number in dropped else ""
            found.append(Sample(Transition(call, number, 0.0, None), 1.0, np.array(number + 0.5), reason))
        return Samples(found, n_grouped, {})

    return make


def test_worked_example_5_with_weights(samples: Callable[..., Samples]) -> None:
    """Of two rollouts, the one with three calls has four trained tokens: each weighs 1 / (2 * 4)."""
    found = samples((O1, A1), (O1 + A1 + O2, A2), (O3, A3), (O1, A2, {"rollout_id": "r2"}), n_grouped=2)
    rows, report = rows_of(found, merge=True, max_row_tokens=100)
    assert [row.token_ids.tolist() for row in rows] == [O1 + A1 + O2 + A2, O3 + A3, O1 + A2]
    assert rows[0].mask.tolist() == [False, False, True, False, False, True, True]
    assert rows[0].weights.tolist() == [0, 0, 1 / 8, 0, 0, 1 / 8, 1 / 8]
    assert rows[0].advantages.tolist() == [0, 0, 0.5, 0, 0, 1.5, 1.5]
    assert rows[0].behaviour_logprobs.tolist() == [0, 0, -1, 0, 0, -2, -2]
    assert rows[2].weights.tolist() == [0, 0, 1 / 4, 1 / 4]
    assert (report.pairs.merged, report.pairs.breaks, report.merge_rate) == (1, ((1, 2),), 0.5)
    assert (report.samples, report.rows, report.branched_rows) == (4, 3, 0)
    assert (report.tokens_before, report.tokens_after) == (3 + 7 + 2 + 4, 7 + 2 + 4)
    assert report.saved_share == pytest.approx(3 / 16)


def test_unmerged_there_is_one_row_per_sample_and_no_pair(samples: Callable[..., Samples]) -> None:
    found = samples((O1, A1), (O1 + A1 + O2, A2))
    rows, report = rows_of(found, merge=False, max_row_tokens=100)
    assert [row.samples for row in rows] == [(0,), (1,)]
    assert (len(report.pairs), report.saved_share, report.merge_rate) == (0, 0, 1)


def test_rows_are_of_used_samples(samples: Callable[..., Samples]) -> None:
    """`Row.samples` counts these alone; what was dropped in between is context."""
    found = samples((O1, A1), (O1 + A1 + O2, A2), (O1 + A1 + O2 + A2 + O3, A3), dropped=(1,))
    (row,), report = rows_of(found, merge=True, max_row_tokens=100)
    assert row.samples == (0, 1)
    assert row.token_ids[row.mask].tolist() == A1 + A3
    assert len(report.pairs) == report.pairs.merged == 1


def test_nothing_used_is_no_row(samples: Callable[..., Samples]) -> None:
    rows, report = rows_of(samples((O1, A1), dropped=(0,)), merge=True, max_row_tokens=100)
    assert rows == []
    assert (report.rows, report.saved_share) == (0, 0)


@pytest.mark.parametrize("what", ["policy", "attempt", "rollout_id"])
def test_what_is_not_of_one_policy_and_attempt_shares_nothing(samples: Callable[..., Samples], what: str) -> None:
    other = {what: 1 if what == "attempt" else "other"}
    rows, report = rows_of(samples((O1, A1), (O1 + A1 + O2, A2, other)), merge=True, max_row_tokens=100)
    assert len(rows) == 2
    assert len(report.pairs) == 0


def test_a_sub_agent_that_goes_on_from_its_caller_shares_its_row_and_is_no_pair(
    samples: Callable[..., Samples],
) -> None:
    found = samples((O1, A1), (O1 + A1 + O2, A2, {"agent": "sub"}), (O1 + A1 + O3, A3))
    (row,), report = rows_of(found, merge=True, max_row_tokens=100)
    assert row.branches is not None
    assert report.branched_rows == 1
    assert len(report.pairs) == report.pairs.merged == 1


def test_choices_of_one_request_are_one_of_a_pair(samples: Callable[..., Samples]) -> None:
    """n = 2, and the agent goes on with the second choice; then it starts anew."""
    one = {"response_id": "one"}
    found = samples((O1, A1, one), (O1, A2, one), (O1 + A2 + O2, A3), (O3, A3))
    rows, report = rows_of(found, merge=True, max_row_tokens=100)
    assert len(rows) == 2
    assert (len(report.pairs), report.pairs.merged, report.pairs.breaks) == (2, 1, ((2, 3),))


def test_a_pair_that_was_split_for_its_length_is_no_break(samples: Callable[..., Samples]) -> None:
    found = samples((O1, A1), (O1 + A1 + O2, A2))
    rows, report = rows_of(found, merge=True, max_row_tokens=6)
    assert [row.token_ids.tolist() for row in rows] == [O1 + A1, O1 + A1 + O2 + A2]
    assert (report.pairs.merged, report.pairs.split, report.pairs.breaks) == (0, 1, ())
    assert report.saved_share == 0


def test_the_report_as_metrics(samples: Callable[..., Samples]) -> None:
    found = samples((O1, A1), (O1 + A1 + O2, A2), (O3, A3), (O1, A3))
    _, report = rows_of(found, merge=True, max_row_tokens=100)
    with pytest.raises(ValueError, match="one class per break"):
        report.classified(["template", "template"])
    assert report.classified(["template"]).metrics() == {
        "n_rows": 2,
        "merge_pairs": 3,
        "merge_rate": 2 / 3,
        "merge_saved_share": pytest.approx(1 - 11 / 15),
        "merge_split": 0,
        "row_tokens": 11,
        "branched_rows": 1,
        "merge_break_template": 1,
    }
