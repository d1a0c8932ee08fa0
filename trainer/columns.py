"""Answers of the store column by column, as Arrow brings them: token ids become arrays, and never Python integers.

Invariant: an array is a view of the block that it came in, which stays in memory as long as any of its arrays.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracegrad.errors import TracegradError

FORMAT = "ArrowStream"
SETTINGS = {"output_format_arrow_string_as_string": 0, "output_format_arrow_low_cardinality_as_dictionary": 0}
"""What the store is to be asked with: it keeps bytes, and does not know whether they are text."""
END = b"\xff\xff\xff\xff\0\0\0\0"
"""Of a complete stream. Arrow takes what ends without it for complete too."""

Columns = Mapping[str, list[Any]]
"""By name, a value for each row."""


def blocks_of(answer: bytes) -> Iterator[tuple[Columns, int]]:
    """The columns of each block of an answer in `FORMAT`, and how many bytes they take.

    Arrays of numbers become NumPy arrays, unsigned ones of int64, as token ids are; text that is none is shown in hex.
    Raises TracegradError where the answer is not complete.
    """
    if not answer:  # how ClickHouse says that there are no rows
        return
    if not answer.endswith(END):
        raise TracegradError("the store broke off its answer: try again, and look at what its log says")
    with pa.ipc.open_stream(answer) as stream:
        for block in stream:
            yield {name: _values(column) for name, column in zip(block.schema.names, block, strict=True)}, block.nbytes


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_binary(column.type):
        return _texts(column)
    if not pa.types.is_list(column.type):
        return list(column.to_pylist())
    ends = column.offsets.tolist()
    if pa.types.is_binary(column.type.value_type):
        texts = _texts(column.values)
        return [texts[begin:end] for begin, end in pairwise(ends)]
    numbers = column.values.to_numpy()
    if numbers.dtype.kind == "u":
        numbers = numbers.astype(np.int64)
    return [numbers[begin:end] for begin, end in pairwise(ends)]


def _texts(column: pa.Array) -> list[str]:
    """Equal ones share one object: most columns have few."""
    known = pc.dictionary_encode(column)
    try:
        texts = known.dictionary.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        texts = [_text(value) for value in known.dictionary.to_pylist()]
    return [texts[index] for index in known.indices.tolist()]


def _text(value: bytes) -> str:
    """As the driver of ClickHouse shows it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()
