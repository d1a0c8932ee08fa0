"""Rows to the tensors that verl trains on.

Rows are sorted by length and cut into micro-batches of equal size, so that little is spent on padding. Where the
number of rows does not divide, the shortest micro-batch gets padding rows: two tokens, mask 0, advantage 0, weight 0.
They are counted nowhere, so they change neither loss, gradient nor metrics.
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
    """`data`: verl's tensors. Entries: first `n_padding` padding rows, then the rows by length.

    `order[k]`: which row is entry `n_padding + k`; `n_response[k]`: its response tokens.
    `micro_batch_rows` divides the number of entries.
    """

    data: TensorDict
    order: NDArray[np.int64]
    n_response: NDArray[np.int64]
    n_padding: int
    micro_batch_rows: int

    @property
    def n_entries(self) -> int:
        """Rows, padding included."""
        return self.n_padding + len(self.order)

    @property
    def longest_response(self) -> int:
        """R, the width of the padded tensors."""
        return int(self.n_response.max())


def make_batch(rows: Sequence[Row], micro_batch_rows: int) -> Batch:
    """All rows as one batch. Shapes: (rows, tokens) jagged for ids, (rows, R) for the rest, R = longest response."""
    micro_batches = math.ceil(len(rows) / micro_batch_rows)
    per_micro_batch = math.ceil(len(rows) / micro_batches)
    n_padding = micro_batches * per_micro_batch - len(rows)
    lengths = np.array([len(row.prompt_token_ids) + len(row.response_token_ids) for row in rows])
    order = np.argsort(lengths, kind="stable").astype(np.int64)
    padding = Row(
        prompt_token_ids=np.zeros(1, np.int64),
        response_token_ids=np.zeros(1, np.int64),
        behaviour_logprobs=np.zeros(1, np.float32),
        advantage=0.0,
        weight=0.0,
    )
    entries = [padding] * n_padding + [rows[index] for index in order]
    n_response = np.array([len(rows[index].response_token_ids) for index in order], np.int64)
    return Batch(_tensors(entries, n_padding), order, n_response, n_padding, per_micro_batch)


def _tensors(entries: Sequence[Row], n_padding: int) -> TensorDict:
    prompts = [torch.as_tensor(row.prompt_token_ids) for row in entries]
    responses = [torch.as_tensor(row.response_token_ids) for row in entries]
    sequences = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    n_response = np.array([len(response) for response in responses])
    real = np.arange(len(entries)) >= n_padding
    mask = (np.arange(n_response.max()) < n_response[:, None]) & real[:, None]
    behaviour = np.zeros(mask.shape, np.float32)
    for index, row in enumerate(entries):
        behaviour[index, : n_response[index]] = row.behaviour_logprobs
    advantage = np.array([row.advantage for row in entries], np.float32)
    weight = np.array([row.weight for row in entries], np.float32)
    mask_tensor = torch.from_numpy(mask)
    return TensorDict(
        {
            "input_ids": _jagged(sequences),
            "position_ids": _jagged([torch.arange(len(sequence)) for sequence in sequences]),
            "prompts": _jagged(prompts),
            "responses": _jagged(responses),
            "response_mask": mask_tensor.long(),
            "loss_mask": mask_tensor.long(),
            "old_log_probs": torch.from_numpy(behaviour),
            "advantages": torch.from_numpy(advantage[:, None] * mask),
            "rollout_is_weights": torch.from_numpy(weight[:, None] * mask),
        },
        batch_size=len(entries),
    )


def _jagged(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)


def response_log_probs(log_probs: torch.Tensor, batch: Batch) -> list[NDArray[np.float32]]:
    """verl's jagged (entries, tokens) log-probabilities as one (r,) array per row, in the order the rows came in."""
    padded = no_padding_2_padding(log_probs, batch.data).float().numpy()[batch.n_padding :]
    by_row = np.argsort(batch.order)
    return [padded[position, : batch.n_response[position]].copy() for position in by_row]
