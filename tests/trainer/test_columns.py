"""Answers of the store in columns: what Arrow brings becomes arrays and values, or an error."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from recorded_agents import Collector

from tracegrad.clickhouse import connect
from tracegrad.errors import TracegradError
from trainer.columns import FORMAT, SETTINGS, Columns, blocks_of
from trainer.stored_rows import are_alike
from trainer.transitions import Call


def answer(store: Collector, query: str) -> bytes:
    client = connect(store.clickhouse)
    try:
        return client.raw_query(query, settings=SETTINGS, fmt=FORMAT)
    finally:
        client.close()


def columns(store: Collector, query: str) -> Columns:
    (block,) = [found for found, _ in blocks_of(answer(store, query))]
    return block


def test_token_ids_are_views_of_one_array(collector: Collector) -> None:
    found = columns(
        collector,
        "SELECT arrayMap(at -> toUInt32(at + number), range(number)) AS ids, "
        "arrayMap(at -> toFloat32(at / 2), range(number)) AS logprobs FROM numbers(4)",
    )
    assert [ids.tolist() for ids in found["ids"]] == [[], [1], [2, 3], [3, 4, 5]]
    assert {ids.dtype for ids in found["ids"]} == {np.dtype(np.int64)}
    assert np.shares_memory(found["ids"][3].base, found["ids"][2].base)
    assert [values.tolist() for values in found["logprobs"]] == [[], [0], [0, 0.5], [0, 0.5, 1]]
    assert {values.dtype for values in found["logprobs"]} == {np.dtype(np.float32)}


def test_every_other_kind_of_value_is_python(collector: Collector) -> None:
    found = columns(
        collector,
        "SELECT 'Grüße' AS text, toLowCardinality('low') AS low, CAST(NULL, 'Nullable(UInt64)') AS none, "
        "18446744073709551615 AS large, true AS truth, ['a', 'b'] AS names, CAST([], 'Array(String)') AS nobody, "
        "CAST(['x'], 'Array(LowCardinality(String))') AS few, -1 AS negative",
    )
    assert {name: values[0] for name, values in found.items()} == {
        "text": "Grüße",
        "low": "low",
        "none": None,
        "large": 18446744073709551615,
        "truth": True,
        "names": ["a", "b"],
        "nobody": [],
        "few": ["x"],
        "negative": -1,
    }


def test_bytes_that_are_no_text_are_shown_in_hex(collector: Collector) -> None:
    found = columns(collector, "SELECT if(number = 1, unhex('ff00'), 'text') AS name FROM numbers(3)")
    assert found["name"] == ["text", "ff00", "text"]


def test_the_size_of_a_block_counts_its_tokens(collector: Collector) -> None:
    query = "SELECT arrayMap(at -> toUInt32(at), range(1000)) AS ids FROM numbers(10)"
    (size,) = [size for _, size in blocks_of(answer(collector, query))]
    assert 40_000 <= size < 41_000


def test_no_rows_are_no_blocks(collector: Collector) -> None:
    assert sum(len(found["number"]) for found, _ in blocks_of(answer(collector, "SELECT number FROM numbers(0)"))) == 0


def test_an_answer_that_breaks_off_is_never_taken_for_the_whole() -> None:
    batch = pa.record_batch({"number": pa.array([1, 2, 3])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        for _ in range(3):
            stream.write_batch(batch)
    whole = sink.getvalue().to_pybytes()
    assert sum(len(found["number"]) for found, _ in blocks_of(whole)) == 9
    assert pa.ipc.open_stream(whole[:-8]).read_all().num_rows == 9, "Arrow itself does not mind"
    with pytest.raises(TracegradError, match="broke off"):
        list(blocks_of(whole[:-8]))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"retry_count": 1}, False),
        ({"prompt_token_ids": np.zeros(0, np.int64)}, False),
        ({"retry_count": 1, "prompt_token_ids": np.zeros(0, np.int64)}, True),
        ({"untrainable_reason": "aborted", "prompt_token_ids": np.zeros(0, np.int64)}, True),
        ({"retry_count": 1, "prompt_token_ids": np.zeros(0, np.int64), "policy": ""}, False),
    ],
)
def test_messages_are_read_only_where_they_tell_requests_apart(
    make_call: Callable[..., Call], changes: dict[str, object], expected: bool
) -> None:
    assert are_alike([make_call("a", 1), make_call("b", 2, **changes)]) is expected
