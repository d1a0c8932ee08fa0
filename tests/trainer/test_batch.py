"""Batches: what stands where, and that padding rows are counted nowhere."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.batch import make_batch, trained_log_probs
from trainer.rows import Row

pytestmark = pytest.mark.slow

LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20)


def rows_of(lengths: list[tuple[int, int]]) -> list[Row]:
    """Rows whose tokens name them: row k has prompt tokens 100 k and response tokens 100 k + position."""
    return [
        Row.of_response(
            np.full(p, 100 * k),
            100 * k + 1 + np.arange(r),
            -np.arange(r, dtype=np.float32) - k,
            advantage=1.0 + k,
            weight=0.5 + k,
        )
        for k, (p, r) in enumerate(lengths)
    ]


@given(LENGTHS, st.integers(1, 8))
def test_every_row_is_there_once_and_padding_weighs_nothing(lengths: list[tuple[int, int]], most: int) -> None:
    rows = rows_of(lengths)
    batch = make_batch(rows, most)
    assert sorted(batch.order) == list(range(len(rows)))
    assert batch.micro_batch_rows <= most
    assert batch.n_entries == len(batch.data)
    assert batch.n_entries % batch.micro_batch_rows == 0
    assert batch.n_padding < batch.micro_batch_rows  # so that no micro-batch is padding alone
    ids, mask = batch.data["input_ids"].unbind(), batch.data["response_mask"]
    for name in ("response_mask", "loss_mask", "advantages", "rollout_is_weights"):
        assert batch.data[name][: batch.n_padding].count_nonzero() == 0
    sizes = [len(sequence) for sequence in ids]
    assert sizes == sorted(sizes)
    for entry, index in enumerate(batch.order, start=batch.n_padding):
        row, (p, r) = rows[index], lengths[index]
        assert ids[entry].tolist() == row.token_ids.tolist()
        assert mask[entry].tolist() == [1] * r + [0] * (batch.longest_response - r)
        assert batch.data["old_log_probs"][entry, :r].tolist() == row.behaviour_logprobs[p:].tolist()
        assert batch.data["advantages"][entry].tolist() == [(1.0 + index) * m for m in mask[entry].tolist()]
        assert batch.data["rollout_is_weights"][entry].tolist() == [(0.5 + index) * m for m in mask[entry].tolist()]


@given(LENGTHS, st.integers(1, 8))
def test_log_probs_come_back_in_the_order_of_the_rows(lengths: list[tuple[int, int]], most: int) -> None:
    """verl's value at token t belongs to token t + 1."""
    rows = rows_of(lengths)
    batch = make_batch(rows, most)
    next_token = torch.nested.as_nested_tensor(
        [sequence.roll(-1).float() for sequence in batch.data["input_ids"].unbind()], layout=torch.jagged
    )
    found = trained_log_probs(next_token, batch)
    assert [values.tolist() for values in found] == [row.token_ids[row.mask].tolist() for row in rows]
