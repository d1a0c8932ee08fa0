"""Rows to the tensors that verl trains on.

Rows are sorted by length and cut into micro-batches of equal size, so that little is spent on padding; those with
branches come last, so that the others rarely share their slower attention. Where the number of rows does not divide,
the first micro-batch gets padding rows: two tokens, mask 0, advantage 0, weight 0. They are counted nowhere, so they
change neither loss, gradient nor metrics.

verl knows a prompt and a response per row. Here everything from the first trained token on is the response, and the
mask leaves out what is not trained in it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from verl.workers.utils.padding import no_padding_2_padding

from trainer.rows import Row


@dataclass(frozen=True)
class Batch:
    """`data`: verl's tensors. Entries: first `n_padding` padding rows, then the rows by branches and length.

    `order[k]`: which row is entry `n_padding + k`. `micro_batch_rows` divides the number of entries.
    """

    data: TensorDict
    order: NDArray[np.int64]
    n_padding: int
    micro_batch_rows: int

    @property
    def n_entries(self) -> int:
        """Rows, padding included."""
        return self.n_padding + len(self.order)

    @property
    def longest_response(self) -> int:
        """R, the width of the padded tensors."""
        return int(self.data["response_mask"].shape[1])


PADDING = Row(
    token_ids=np.zeros(2, np.int64),
    mask=np.array([False, True]),
    behaviour_logprobs=np.zeros(2, np.float32),
    advantages=np.zeros(2, np.float32),
    weights=np.zeros(2, np.float32),
)


def make_batch(rows: Sequence[Row], micro_batch_rows: int) -> Batch:
    """All rows as one batch. Shapes: (rows, tokens) jagged for ids, (rows, R) for the rest, R = longest response.

    `reach` (see `trainer.rows.Branches`), (rows, tokens) jagged, is there where any row has branches.
    """
    micro_batches = math.ceil(len(rows) / micro_batch_rows)
    per_micro_batch = math.ceil(len(rows) / micro_batches)
    n_padding = micro_batches * per_micro_batch - len(rows)
    lengths = [len(row.token_ids) for row in rows]
    order = np.lexsort((lengths, [row.branches is not None for row in rows])).astype(np.int64)
    entries = [PADDING] * n_padding + [rows[index] for index in order]
    return Batch(_tensors(entries, n_padding), order, n_padding, per_micro_batch)


def _tensors(entries: Sequence[Row], n_padding: int) -> TensorDict:
    n_prompt = [int(np.argmax(row.mask)) for row in entries]
    longest = max(len(row.token_ids) - n for row, n in zip(entries, n_prompt, strict=True))
    mask = np.zeros((len(entries), longest), np.bool_)
    behaviour, advantages, weights = (np.zeros(mask.shape, np.float32) for _ in range(3))
    for index, (row, n) in enumerate(zip(entries, n_prompt, strict=True)):
        response = slice(len(row.token_ids) - n)
        mask[index, response] = row.mask[n:] & (index >= n_padding)
        behaviour[index, response] = row.behaviour_logprobs[n:]
        advantages[index, response] = row.advantages[n:]
        weights[index, response] = row.weights[n:]
    ids = [torch.as_tensor(row.token_ids) for row in entries]
    mask_tensor = torch.from_numpy(mask).long()
    tensors = {
        "input_ids": _jagged(ids),
        "position_ids": _jagged([torch.as_tensor(_positions(row)) for row in entries]),
        "prompts": _jagged([row_ids[:n] for row_ids, n in zip(ids, n_prompt, strict=True)]),
        "responses": _jagged([row_ids[n:] for row_ids, n in zip(ids, n_prompt, strict=True)]),
        "response_mask": mask_tensor,
        "loss_mask": mask_tensor,
        "old_log_probs": torch.from_numpy(behaviour),
        "advantages": torch.from_numpy(advantages),
        "rollout_is_weights": torch.from_numpy(weights),
    }
    if entries[-1].branches is not None:
        tensors["reach"] = _jagged([torch.as_tensor(_reach(row)) for row in entries])
    return TensorDict(tensors, batch_size=len(entries))


def _positions(row: Row) -> NDArray[np.int64]:
    return np.arange(len(row.token_ids)) if row.branches is None else row.branches.positions


def _reach(row: Row) -> NDArray[np.int64]:
    return np.full(len(row.token_ids), len(row.token_ids) - 1) if row.branches is None else row.branches.reach


def _jagged(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)


def attention_mask(reach: torch.Tensor) -> torch.Tensor | None:
    """bool (rows, 1, longest, longest): what each token attends to. `reach`: jagged (rows, tokens).

    None where no row has branches. Padding attends to itself alone: a softmax over nothing has no gradient.
    """
    n_tokens = reach.offsets().diff()
    if torch.equal(reach.values(), (n_tokens - 1).repeat_interleave(n_tokens)):
        return None
    last = torch.nested.to_padded_tensor(reach, padding=-1)
    token = torch.arange(last.shape[1], device=last.device)
    last = last.maximum(token)[:, None, None, :]
    return (token[None, :] <= token[:, None]) & (token[:, None] <= last)


def trained_log_probs(log_probs: torch.Tensor, batch: Batch) -> list[NDArray[np.float32]]:
    """verl's jagged (entries, tokens) log-probabilities as (trained tokens,) per row, in the order the rows came in."""
    padded = no_padding_2_padding(log_probs, batch.data).float().numpy()
    mask = batch.data["response_mask"].bool().numpy()
    return [padded[entry][mask[entry]] for entry in batch.n_padding + np.argsort(batch.order)]
