"""Rows are what protobuf reads in a request, record by record, whoever wrote it and however it is cut."""

from unittest import mock

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_rows import ROW, field, rows_of, varint

from collector import rows as rows_module
from collector.rows import PIECE_BYTES, PIECE_ROWS, OddError, Piece, pieces
from collector.signals import LOGS, METRICS, SIGNALS, TRACES, Signal

LISTS = {TRACES: ("resource_spans", "scope_spans", "spans"), LOGS: ("resource_logs", "scope_logs", "log_records")}
LISTS[METRICS] = ("resource_metrics", "scope_metrics", "metrics")
SPAN = field(2, field(5, b"name"))
"""One that a ScopeSpans holds."""


def request(*parts: bytes) -> bytes:
    """Of one resource, which has these fields."""
    return field(1, b"".join(parts))


# Bytes of a record, a resource or a scope, which nothing looks at: unknown fields of any kind, and an attribute.
anything = st.lists(
    st.one_of(
        st.binary(max_size=300).map(lambda body: field(900, body)),
        st.integers(0, 2**64 - 1).map(lambda value: varint(901 << 3) + varint(value)),
        st.just(varint(902 << 3 | 3) + varint(1 << 3) + b"\1" + varint(902 << 3 | 4)),
    ),
    max_size=3,
).map(b"".join)
longer = st.sampled_from((0, 0, 0, 1, 2))


@st.composite
def described(draw: st.DrawFn, many: st.SearchStrategy[bytes]) -> bytes:
    """A ResourceSpans or ScopeSpans: what it describes, its URL and unknown fields, or not, among its many, anyhow."""
    parts = [field(2, body, longer_size=draw(longer)) for body in draw(st.lists(many, max_size=4))]
    parts += [field(1, body, longer_size=draw(longer)) for body in draw(st.lists(anything, max_size=1))]
    urls = draw(st.lists(st.sampled_from(("", "https://x", "u" * 200)), max_size=1))
    parts += [field(3, url.encode(), longer_size=draw(longer)) for url in urls]
    parts += [field(7, body) for body in draw(st.lists(anything, max_size=1))]
    return b"".join(draw(st.permutations(parts)))


requests = st.lists(described(described(anything)), max_size=4).map(
    lambda resources: b"".join(field(1, resource) for resource in resources)
)


def expected(signal: Signal, body: bytes, number: int) -> list[bytes]:
    """The rows, from what protobuf makes of the request."""
    of_resources, of_scopes, of_records = LISTS[signal]
    found = []
    for resource in getattr(signal.request.FromString(body), of_resources):
        for scope in getattr(resource, of_scopes):
            for record in getattr(scope, of_records):
                row = ROW[signal](
                    resource_schema_url=resource.schema_url, scope_schema_url=scope.schema_url, ingest_id=number
                )
                row.record.ParseFromString(record.SerializeToString())
                if resource.HasField("resource"):
                    row.resource.ParseFromString(resource.resource.SerializeToString())
                if scope.HasField("scope"):
                    row.scope.ParseFromString(scope.scope.SerializeToString())
                found.append(row.SerializeToString(deterministic=True))
                number += 1
    return found


def written(signal: Signal, cut: list[Piece]) -> list[bytes]:
    return [row.SerializeToString(deterministic=True) for piece in cut for row in rows_of(signal, piece.data)]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SIGNALS), st.lists(requests, max_size=3), st.integers(1, 9), st.integers(1, 900))
def test_rows_are_what_protobuf_reads(signal: Signal, bodies: list[bytes], most_rows: int, most_bytes: int) -> None:
    numbers = [2**64 - 2**40 + index * 2**20 for index in range(len(bodies))]
    with (
        mock.patch.object(rows_module, "PIECE_ROWS", most_rows),
        mock.patch.object(rows_module, "PIECE_BYTES", most_bytes),
    ):
        cut = list(pieces(bodies, numbers))
    wanted = [row for body, number in zip(bodies, numbers, strict=True) for row in expected(signal, body, number)]
    assert written(signal, cut) == wanted
    last = -1
    for piece in cut:
        ids = [row.ingest_id for row in rows_of(signal, piece.data)]
        assert piece.count == len(ids) <= most_rows
        assert last < piece.first_id == ids[0]
        assert ids[-1] <= piece.last_id
        last = piece.last_id
    for body, number in zip(bodies, numbers, strict=True):
        ids = [row.ingest_id for piece in cut for row in rows_of(signal, piece.data)]
        assert all(found - number < len(body) for found in ids if number <= found < number + 2**20)


@settings(max_examples=60, deadline=None)
@given(requests)
def test_halves_have_the_same_rows_and_their_own_ids(body: bytes) -> None:
    for piece in pieces([body], [7]):
        if piece.count < 2:
            continue
        first, second = piece.halves()
        assert (first.count, second.count) == (piece.count // 2, piece.count - piece.count // 2)
        assert written(TRACES, [first, second]) == written(TRACES, [piece])
        for half in (first, second):
            ids = [row.ingest_id for row in rows_of(TRACES, half.data)]
            assert (half.first_id, half.last_id) == (ids[0], ids[-1])


def test_halves_of_halves_are_single_rows() -> None:
    (whole,) = pieces([request(field(2, SPAN * 13))], [100])
    left = [whole]
    while any(piece.count > 1 for piece in left):
        left = [half for piece in left for half in (piece.halves() if piece.count > 1 else [piece])]
    assert [(piece.first_id, piece.last_id) for piece in left] == [(number, number) for number in range(100, 113)]


def test_many_small_records_are_cut_by_their_number() -> None:
    body = request(field(2, SPAN * (2 * PIECE_ROWS + 5)))
    assert [piece.count for piece in pieces([body], [0])] == [PIECE_ROWS, PIECE_ROWS, 5]


def test_one_request_with_a_large_resource_is_never_whole_in_memory() -> None:
    """The reviewer's: 226 kB that are 200 MB of rows."""
    resource = field(1, field(900, b"r" * 50_000))
    body = request(field(2, SPAN * 4000), resource)
    count = largest = 0
    for piece in pieces([body], [0]):
        count += piece.count
        largest = max(largest, len(piece.data))
        assert piece.first_id == count - piece.count
        assert piece.last_id == count - 1
    assert count == 4000
    assert PIECE_BYTES <= largest < PIECE_BYTES + len(resource) + 200


def test_what_has_no_records_is_no_piece() -> None:
    assert list(pieces([], [])) == []
    assert list(pieces([b"", request(), request(field(1, b"")), request(field(2, field(1, b"")))], range(4))) == []


GROUP = varint(99 << 3 | 3) + varint(99 << 3 | 4)
ODD = {
    "overlong tag of the resource": request(field(1, b"", longer_tag=1), field(2, SPAN)),
    "overlong tag of the scopes": request(field(2, SPAN, longer_tag=1)),
    "overlong tag of a span": request(field(2, field(2, b"", longer_tag=2))),
    "overlong tag of a URL": request(field(2, SPAN + field(3, b"u", longer_tag=1))),
    "overlong tag in the request": field(1, field(2, SPAN), longer_tag=1),
    "two resources": request(field(1, b""), field(2, SPAN), field(1, b"")),
    "two URLs of a resource": request(field(3, b""), field(2, SPAN), field(3, b"")),
    "two scopes": request(field(2, field(1, b"") + SPAN + field(1, b""))),
    "two URLs of a scope": request(field(2, field(3, b"") + SPAN + field(3, b"u"))),
    "an unknown number": request(b"\x38\x05", field(2, SPAN)),
    "unknown 64 bits": request(field(2, SPAN + b"\x39" + bytes(8))),
    "unknown 32 bits": request(field(2, SPAN)) + b"\x3d" + bytes(4),
    "a number where a resource should be": request(b"\x08\x05", field(2, SPAN)),
    "an unknown field that is far": request(field(1000, b"x"), field(2, SPAN)),
    "a group in the request": request(field(2, SPAN)) + b"\x3b\x08\x01\x3c",
    "a group in a resource": request(GROUP, field(2, SPAN)),
    "a group in a scope": request(field(2, SPAN + GROUP)),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_what_protobuf_reads_and_no_writer_writes_is_told_from_the_rest(odd: bytes) -> None:
    ExportTraceServiceRequest.FromString(odd)
    with pytest.raises(OddError):
        list(pieces([request(field(2, SPAN)), odd], [0, 10_000]))


def test_no_well_formed_request_is_more_than_odd() -> None:
    """Each byte of a request changed in some ways: protobuf refuses it, or the rows are protobuf's, or it is odd."""
    body = request(
        field(1, field(900, b"r")), field(3, b"u"), field(2, field(1, b"\x0a\x01s") + SPAN * 2 + field(3, b"v"))
    )
    kept = odd = 0
    for at in range(len(body)):
        for byte in {0, 1, 2, 3, 4, 0x0B, 0x0C, 0x22, 0x7F, 0x80, 0xFF, *(body[at] ^ 1 << bit for bit in range(8))}:
            changed = body[:at] + bytes([byte]) + body[at + 1 :]
            try:
                wanted = expected(TRACES, changed, 5)
            except DecodeError:
                continue
            try:
                assert written(TRACES, list(pieces([changed], [5]))) == wanted
                kept += 1
            except OddError:
                odd += 1
    assert kept > 50
    assert odd > 10
