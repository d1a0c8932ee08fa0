"""Transitions as a `DataProto` of verl, as its trainer has them after a rollout: one row per transition that is used.

Shapes: `prompts` (rows, p), padded on the left; `responses` and all that is per response token (rows, r), padded on the
right; `input_ids`, `attention_mask`, `position_ids` (rows, p + r). The score of a row is its credit, at its last token.
`uid` is its group, by which verl measures again if it is asked to; `advantages` are ours, measured over rollouts, also
those of which nothing is used.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tracegrad.errors import InputError, SettingsError

if TYPE_CHECKING:
    from verl import DataProto

PAD = 0
"""The id where there is no token; what attends to it is masked."""
ABOUT = ("rollout_id", "attempt", "task_id", "agent", "trace_id", "span_id", "index", "policy", "policy_version")
"""What a row's `non_tensor_batch` tells of it, besides `uid`."""


def write_verl(lines: Iterable[Mapping[str, Any]], path: Path, metadata: Mapping[str, str]) -> int:
    """How many rows were written, all of them in memory. Raises SettingsError without verl, InputError without rows."""
    used = [line for line in lines if line["used"]]
    if not used:
        raise InputError("no transition is used, so verl would have nothing to train on: see `tracegrad transitions`")
    if len(policies := {line["policy"] for line in used}) > 1:
        raise InputError(
            f"verl trains one policy, and these are of {', '.join(sorted(policies))}: choose with --policy"
        )
    unmeasured = [line for line in used if line["advantage"] is None]
    if 0 < len(unmeasured) < len(used):
        raise InputError(
            f"{len(unmeasured)} of {len(used)} used transitions have no advantage by these choices, such as call "
            f"{unmeasured[0]['span_id']}: a step trained on them by its job's. Give that job with --job, or "
            "--no-advantage to let verl compute all"
        )
    try:
        batch = data_proto(used, metadata)
    except ModuleNotFoundError as error:
        raise SettingsError(f"--format verl needs torch and verl (no module {error.name}): install them") from error
    batch.save_to_disk(path)
    return len(used)


def data_proto(lines: Sequence[Mapping[str, Any]], metadata: Mapping[str, str]) -> "DataProto":
    """The batch of these transitions, all of one policy; without advantages where they have none."""
    import torch
    from verl import DataProto

    prompts, prompt_mask = _padded([line["prompt_token_ids"] for line in lines], np.int64, left=True)
    responses, response_mask = _padded([line["response_token_ids"] for line in lines], np.int64)
    logprobs, _ = _padded([line["logprobs"] for line in lines], np.float32)
    attention = np.concatenate([prompt_mask, response_mask], axis=1)
    scores = np.zeros(responses.shape, np.float32)
    scores[np.arange(len(lines)), response_mask.sum(axis=1) - 1] = [line["credit"] for line in lines]
    tensors: dict[str, NDArray[Any]] = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": attention,
        "position_ids": np.maximum(np.cumsum(attention, axis=1) - 1, 0),
        "response_mask": response_mask,
        "rollout_log_probs": logprobs,
        "old_log_probs": logprobs,
        "rm_scores": scores,
        "token_level_scores": scores,
        "token_level_rewards": scores,
    }
    if all(line["advantage"] is not None for line in lines):
        each = np.array([line["advantage"] for line in lines], np.float32)[:, None] * response_mask.astype(np.float32)
        tensors |= {"advantages": each, "returns": each}
    told: dict[str, list[Any]] = {name: [line[name] for line in lines] for name in ABOUT}
    told["uid"] = [_group(line) for line in lines]
    return DataProto.from_dict(
        tensors={name: torch.from_numpy(np.array(array)) for name, array in tensors.items()},
        non_tensors={name: np.array(values, dtype=object) for name, values in told.items()},
        meta_info={
            # Only what was sampled at temperature 1 is used.
            "temperature": 1.0,
            "global_token_num": attention.sum(axis=1).tolist(),
            **metadata,
        },
    )


def _group(line: Mapping[str, Any]) -> str:
    """As `Rollout.group`: rollouts of one task are measured against each other."""
    return f"task {line['task_id']}" if line["task_id"] else f"rollout {line['rollout_id']} {line['attempt']}"


def _padded(rows: Sequence[Any], of: type, *, left: bool = False) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The rows at the same length, and a mask with ones where they are."""
    lengths = np.array([len(row) for row in rows])
    places = np.arange(lengths.max())[None, :]
    mask = places >= lengths.max() - lengths[:, None] if left else places < lengths[:, None]
    padded = np.full(mask.shape, PAD, of)
    padded[mask] = np.concatenate([np.asarray(row, of) for row in rows])
    return padded, mask.astype(np.int64)
