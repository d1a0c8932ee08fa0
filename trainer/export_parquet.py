"""Transitions as a Parquet file, typed as the store has them, written in row groups as they come.

The schema's metadata says how credit and advantages were made. In memory is one row group.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES, GROUP_ROWS = 64 << 20, 65_536
"""A row group is written when it has so much of either."""
_TOKENS = ("prompt_token_ids", "response_token_ids", "next_prompt_token_ids")


def write_parquet(lines: Iterable[Mapping[str, Any]], path: Path, metadata: Mapping[str, str]) -> int:
    """How many rows were written. `lines`: as `list_transitions` gives them."""
    import pyarrow.parquet as pq

    schema = transition_schema().with_metadata({key: value.encode() for key, value in metadata.items()})
    total, size = 0, 0
    group: list[Mapping[str, Any]] = []
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for line in lines:
            group.append(line)
            size += _size(line)
            if size >= GROUP_BYTES or len(group) >= GROUP_ROWS:
                writer.write_batch(_batch(group, schema), row_group_size=len(group))
                total += len(group)
                group, size = [], 0
        if group:
            writer.write_batch(_batch(group, schema), row_group_size=len(group))
    return total + len(group)


def transition_schema() -> "pa.Schema":
    """The columns, in the order of `tracegrad transitions --json`."""
    import pyarrow as pa

    tokens, text = pa.list_(pa.field("element", pa.uint32(), nullable=False)), pa.string()
    logprobs = pa.list_(pa.field("element", pa.float32(), nullable=False))
    return pa.schema(
        [
            pa.field("rollout_id", text, nullable=False),
            pa.field("attempt", pa.uint32(), nullable=False),
            pa.field("task_id", text, nullable=False),
            pa.field("agent", text, nullable=False),
            pa.field("trace_id", text, nullable=False),
            pa.field("span_id", text, nullable=False),
            pa.field("index", pa.uint32(), nullable=False),
            pa.field("prompt_token_ids", tokens, nullable=False),
            pa.field("response_token_ids", tokens, nullable=False),
            pa.field("logprobs", logprobs, nullable=False),
            pa.field("reward", pa.float64(), nullable=False),
            pa.field("credit", pa.float64(), nullable=False),
            pa.field("advantage", pa.float64()),
            pa.field("next_span_id", text),
            pa.field("next_prompt_token_ids", tokens),
            pa.field("terminal", pa.bool_(), nullable=False),
            pa.field("policy", text, nullable=False),
            pa.field("policy_version", pa.uint64()),
            pa.field("started_at", pa.timestamp("ns", tz="UTC"), nullable=False),
            pa.field("used", pa.bool_(), nullable=False),
            pa.field("drop_reason", text),
        ]
    )


def _size(line: Mapping[str, Any]) -> int:
    return 200 + sum(4 * len(line[name]) for name in (*_TOKENS, "logprobs") if line[name] is not None)


def _batch(group: list[Mapping[str, Any]], schema: "pa.Schema") -> "pa.RecordBatch":
    import pyarrow as pa

    columns = []
    for field in schema:
        values = [line[field.name] for line in group]
        if pa.types.is_list(field.type):
            columns.append(_lists(values, field))
        elif pa.types.is_timestamp(field.type):
            columns.append(pa.array([_unix_ns(value) for value in values], pa.int64()).cast(field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _lists(values: list[Any], field: "pa.Field") -> "pa.ListArray":
    """One copy of all the values behind each other, and where each begins."""
    import pyarrow as pa

    of = np.uint32 if pa.types.is_uint32(field.type.value_type) else np.float32
    arrays = [np.asarray([] if value is None else value, of) for value in values]
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    missing = pa.array([value is None for value in values]) if field.nullable else None
    joined = pa.array(np.concatenate(arrays) if arrays else np.empty(0, of))
    return pa.ListArray.from_arrays(pa.array(offsets), joined, type=field.type, mask=missing)


def _unix_ns(iso: str) -> int:
    """Of `2026-01-31T12:00:00.123456789Z`: `datetime` knows no nanoseconds."""
    whole, _, rest = iso.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 1_000_000_000 + int(rest)
