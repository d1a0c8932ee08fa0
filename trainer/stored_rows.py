"""Attempts, calls and spans out of columns of the store."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from itertools import repeat

from trainer.columns import Columns
from trainer.rollout import Rollout
from trainer.spans import Span
from trainer.transitions import Attempt, Call

_OF_CALL = [field.name for field in fields(Call)]
_OF_SPAN = [field.name for field in fields(Span)]
_OF_ATTEMPT = [field.name for field in fields(Rollout) if field.default is MISSING and field.default_factory is MISSING]


def rollouts_in(columns: Columns) -> Iterator[Rollout]:
    """One for each row of `untrained.sql` and `rollouts.sql`, still without calls and rewards."""
    return map(Rollout, *(columns[name] for name in _OF_ATTEMPT))


def calls_in(columns: Columns) -> Iterator[Call]:
    """One for each row of `calls.sql`. Their `input_hash` is not read yet."""
    told = {
        **columns,
        "input_hash": repeat(0),
        "tool_call_ids": map(tuple, columns["tool_call_ids"]),
        "answer_faults": map(tuple, columns["answer_faults"]),
    }
    return map(Call, *(told[name] for name in _OF_CALL))


def spans_in(columns: Columns) -> Iterator[tuple[Attempt, Span]]:
    """One for each row of `spans.sql`, with the attempt that it is of."""
    attempts = zip(columns["rollout_id"], columns["attempt"], strict=True)
    return zip(attempts, map(Span, *(columns[name] for name in _OF_SPAN)), strict=True)


def are_alike(calls: Iterable[Call]) -> bool:
    """Whether calls of one attempt may be of equal requests that token ids do not tell: then their messages have to.

    That is asked of calls that repeat another and of those that were broken off, see `trainer.transitions`.
    """
    ours: Sequence[Call] = [call for call in calls if call.policy]
    return any(call.retry_count > 0 or call.broken_off for call in ours) and any(
        len(call.prompt_token_ids) == 0 for call in ours
    )
