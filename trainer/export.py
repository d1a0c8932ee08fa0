"""Training data into a file, in the format that somebody else reads: atomically, and in one pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import orjson

import tracegrad
from trainer.finished_file import finished_file
from trainer.listing import Wanted, list_transitions
from trainer.store import Store

Format = Literal["parquet", "jsonl", "verl"]
Progress = Callable[[int], None]


def export_transitions(
    store: Store, wanted: Wanted, format_: Format, out: Path, *, force: bool = False, progress: Progress | None = None
) -> int:
    """How many transitions were written. Raises InputError and SettingsError.

    For verl one number has to be enough: where an estimator gave several to a call, nothing is written.
    """
    wanted = replace(wanted, one_advantage=format_ == "verl")
    with finished_file(out, force=force) as draft:
        lines = _counted(list_transitions(store, wanted), progress)
        metadata = how_it_was_made(wanted)
        if format_ == "parquet":
            from trainer.export_parquet import write_parquet

            return write_parquet(lines, draft, metadata)
        if format_ == "verl":
            from trainer.export_verl import write_verl

            return write_verl(lines, draft, metadata)
        return _write_jsonl(lines, draft)


def export_conversations(
    store: Store, wanted: Wanted, out: Path, *, force: bool = False, progress: Progress | None = None
) -> tuple[int, int]:
    """How many conversations were written, and how many calls make none. Raises InputError."""
    from trainer.export_messages import Skipped, list_conversations

    skipped = Skipped()
    with finished_file(out, force=force) as draft:
        written = _write_jsonl(_counted(list_conversations(store, wanted, skipped), progress), draft)
    return written, skipped.calls


def how_it_was_made(wanted: Wanted) -> dict[str, str]:
    """What an export says of itself: how credit and advantages were made."""
    choices = wanted.choices
    weights = choices.reward_set.weights
    made = {
        "tracegrad.version": tracegrad.__version__,
        "tracegrad.credit.scheme": choices.scheme,
        "tracegrad.credit.gamma": repr(choices.credit_gamma),
        "tracegrad.advantage.estimator": choices.estimator if wanted.advantages else "none",
        "tracegrad.advantage.options": orjson.dumps(choices.options).decode(),
    }
    return made if weights is None else made | {"tracegrad.reward.weights": orjson.dumps(dict(weights)).decode()}


def _write_jsonl(lines: Iterable[Mapping[str, Any]], path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        for line in lines:
            file.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
            count += 1
    return count


def _counted(lines: Iterable[dict[str, Any]], progress: Progress | None) -> Iterator[dict[str, Any]]:
    for count, line in enumerate(lines, 1):
        yield line
        if progress is not None and count % 1000 == 0:
            progress(count)
