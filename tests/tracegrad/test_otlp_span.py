"""A span written directly says what the generated protobuf classes read in it."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad.otlp import attributes
from tracegrad.otlp_span import SPAN_SERVER, Value, encoded_span

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=300)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    TEXT,
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.lists(TEXT, max_size=4),
)
NS = st.integers(0, 2**64 - 1)


@given(
    name=TEXT,
    parent=st.sampled_from([b"", b"p" * 8]),
    start=NS,
    end=NS,
    values=st.dictionaries(TEXT, VALUES, max_size=8),
    error=st.none() | TEXT,
)
def test_any_span_reads_back(  # noqa: PLR0917 - hypothesis names them
    name: str, parent: bytes, start: int, end: int, values: dict[str, Value], error: str | None
) -> None:
    raw = encoded_span(
        name,
        b"t" * 16,
        b"s" * 8,
        parent_span_id=parent,
        kind=SPAN_SERVER,
        start_ns=start,
        end_ns=end,
        values=values,
        error=error,
    )
    found = Span.FromString(raw)
    expected = Span(
        trace_id=b"t" * 16,
        span_id=b"s" * 8,
        parent_span_id=parent,
        name=name,
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=start,
        end_time_unix_nano=end,
        attributes=attributes(values),
        flags=1,
    )
    if error is not None:
        expected.status.code, expected.status.message = 2, error
    assert found == expected


def test_text_that_is_no_utf8_is_mended() -> None:
    raw = encoded_span(
        "n\ud800",
        b"t" * 16,
        b"s" * 8,
        parent_span_id=b"",
        kind=1,
        start_ns=1,
        end_ns=2,
        values={"k": "a\ud800b"},
        error=None,
    )
    found = Span.FromString(raw)
    assert (found.name, found.attributes[0].value.string_value) == ("n?", "a?b")
