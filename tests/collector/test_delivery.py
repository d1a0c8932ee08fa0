"""What is spooled is in the real engine's tables once, as protobuf reads it, whatever else is in the batch."""

import json
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_rows import field, varint
from spooled import die

from collector import delivery as delivery_module
from collector.chdb_store import ChdbStore
from collector.delivery import Delivery, grouped
from collector.engine import Engine
from collector.migrations import Schema, apply
from collector.rows import Piece, pieces
from collector.signals import TRACES
from collector.spool import Spool

DELIVERED_S = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChdbStore]:
    with Engine(tmp_path_factory.mktemp("delivery") / "store") as engine, closing(ChdbStore(engine)) as opened:
        apply(opened, Schema())
        yield opened


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with closing(Spool(tmp_path / "spool", max_bytes=1 << 30, fsync="off")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "INTERVAL_S", 0.0)
    monkeypatch.setattr(delivery_module, "GATHER_S", 0.001)
    monkeypatch.setattr(delivery_module, "FIRST_RETRY_S", 0.01)


def deliver(store: Any, spool: Spool) -> None:
    """All that is in the spool; nothing is tried twice."""
    delivery = Delivery(store, TRACES, spool)
    delivery.start()
    delivery.stop(DELIVERED_S)
    assert delivery.problem is None
    assert spool.figures().waiting_bytes == 0


def kept(store: ChdbStore, name: str) -> list[dict[str, Any]]:
    """The rows of spans of this name, without their ids."""
    asked = f"SELECT * EXCEPT IngestId FROM otel.otel_traces WHERE SpanName = '{name}' ORDER BY SpanId, Timestamp"
    return [json.loads(line) for line in store.query(asked, "JSONEachRow").body.splitlines()]


def span(name: str, more: bytes = b"", number: int = 1) -> bytes:
    """A span, as a field of a ScopeSpans."""
    start = varint(7 << 3 | 1) + struct.pack("<Q", 10**18)
    return field(2, field(1, b"t" * 16) + field(2, number.to_bytes(8, "big")) + field(5, name.encode()) + start + more)


def request(*spans: bytes) -> bytes:
    return field(1, field(2, b"".join(spans)))


def attribute(key: str, *values: bytes) -> bytes:
    """Of a span. Several values are merged."""
    return field(9, field(1, key.encode()) + b"".join(field(2, value) for value in values))


def described(text: str) -> bytes:
    """A Resource with one attribute."""
    return field(1, field(1, text.encode()) + field(2, field(1, text.encode())))


def string(text: str) -> bytes:
    return field(1, text.encode())


TRUE, FIVE, TWO_BOOL = varint(2 << 3) + b"\1", varint(3 << 3) + b"\5", varint(2 << 3) + b"\2"
GROUP = varint(31 << 3 | 3) + varint(1 << 3) + b"\1" + varint(31 << 3 | 4)
ODD = {
    "two members of a oneof": lambda name: request(span(name, attribute("k", string("s") + FIVE))),
    "two members, the string last": lambda name: request(span(name, attribute("k", FIVE + string("s")))),
    "a member twice": lambda name: request(span(name, attribute("k", string("a") + string("b")))),
    "a value twice": lambda name: request(span(name, attribute("k", string("s"), FIVE))),
    "a map": lambda name: request(span(name, attribute("k", field(6, field(1, field(1, b"m") + field(2, FIVE)))))),
    "a bool that is 2": lambda name: request(span(name, attribute("k", TWO_BOOL))),
    "a bool that is 2 in an array": lambda name: request(span(name, attribute("k", field(5, field(1, TWO_BOOL))))),
    "a bool that is 2**32": lambda name: request(span(name, attribute("k", varint(2 << 3) + varint(2**32)))),
    "a bool in two bytes": lambda name: request(span(name, attribute("k", varint(2 << 3) + varint(1, 1)))),
    "a number in eleven bits more": lambda name: request(span(name, attribute("k", varint(3 << 3) + varint(5, 2)))),
    "an overlong tag": lambda name: field(1, field(2, field(1, string("sc"), longer_tag=1) + span(name))),
    "an overlong tag in a span": lambda name: request(span(name, field(3, b"state", longer_tag=1))),
    "an overlong length in a span": lambda name: request(span(name, field(3, b"state", longer_size=2))),
    "an overlong length of all": lambda name: field(1, field(2, span(name), longer_size=1), longer_size=2),
    "a group in a span": lambda name: request(span(name, GROUP)),
    "a group in a scope": lambda name: request(span(name), GROUP),
    "unknown fields of every kind": lambda name: request(
        span(
            name,
            field(99, b"x") + varint(98 << 3) + b"\7" + varint(97 << 3 | 5) + bytes(4) + varint(96 << 3 | 1) + bytes(8),
        )
    ),
    "two scopes": lambda name: request(field(1, string("sc")), span(name), field(1, field(2, b"v1"))),
    "two resources": lambda name: field(1, field(1, described("a")) + field(2, span(name)) + field(1, described("b"))),
    "the resource last": lambda name: field(1, field(2, span(name)) + field(1, described("a"))),
    "a name that is a number": lambda name: request(span(name, varint(5 << 3) + b"\5")),
    "a kind that nobody knows": lambda name: request(span(name, varint(6 << 3) + varint(77))),
    "a kind of more bits": lambda name: request(span(name, varint(6 << 3) + varint(2**32 + 2))),
    "a start that is a varint": lambda name: request(span(name, varint(7 << 3) + b"\5")),
    "an attribute without a value": lambda name: request(span(name, attribute("k"))),
    "an empty value": lambda name: request(span(name, attribute("k", b""))),
    "an attribute twice": lambda name: request(span(name, attribute("k", TRUE) + attribute("k", FIVE))),
}


@pytest.mark.parametrize("case", ODD)
def test_what_protobuf_reads_is_stored_so_and_what_is_around_it_too(case: str, store: ChdbStore, spool: Spool) -> None:
    odd, plain = f"odd, {case}", f"plain, {case}"
    around = [request(span(f"{where} {odd}")) for where in ("before", "after")]
    spool.append([around[0], ODD[case](odd), around[1]])
    deliver(store, spool)
    assert spool.figures().losses.refused_records == 0
    (row,) = kept(store, odd)
    as_protobuf_reads = ExportTraceServiceRequest.FromString(ODD[case](plain))
    as_protobuf_reads.DiscardUnknownFields()
    spool.append([as_protobuf_reads.SerializeToString()])
    deliver(store, spool)
    (wanted,) = kept(store, plain)
    assert row == wanted | {"SpanName": odd}
    assert len(kept(store, f"before {odd}")) == len(kept(store, f"after {odd}")) == 1


@pytest.mark.parametrize(
    ("case", "column", "value"),
    [
        ("two members of a oneof", "SpanAttributes", {"k": "5"}),
        ("a bool that is 2", "SpanAttributes", {"k": "true"}),
        ("two scopes", "ScopeVersion", "v1"),
        ("two resources", "ResourceAttributes", {"a": "a", "b": "b"}),
    ],
)
def test_what_it_is_to_protobuf(case: str, column: str, value: Any, store: ChdbStore, spool: Spool) -> None:
    name = f"said, {case}"
    spool.append([ODD[case](name)])
    deliver(store, spool)
    assert [row[column] for row in kept(store, name)] == [value]


UNHEARD_OF = {
    "a field of a span twice": field(3, b"a") + field(3, b"b"),
    "a message in a span twice": field(15, varint(3 << 3) + b"\2") + field(15, field(2, b"message")),
    "a number that is a string": field(6, b"ab"),
}


@pytest.mark.parametrize("case", UNHEARD_OF)
def test_what_the_engine_reads_otherwise_than_protobuf_changes_nothing_but_itself(
    case: str, store: ChdbStore, spool: Spool
) -> None:
    """The engine does not refuse these, so that nobody decodes them; no writer writes them."""
    spool.append([request(span(case, number=1), span(case, UNHEARD_OF[case], 2), span(case, number=3))])
    deliver(store, spool)
    before, odd, after = kept(store, case)
    assert after == before | {"SpanId": after["SpanId"]}
    assert {name for name in odd if odd[name] != before[name]} <= {
        "SpanId",
        "TraceState",
        "StatusCode",
        "StatusMessage",
        "SpanKind",
    }


def test_inserts_are_bounded_in_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = [
        Piece(b"x" * size, number, number, count)
        for number, (size, count) in enumerate([(40, 1), (40, 1), (200, 1), (10, 60), (10, 60), (10, 40), (10, 1)])
    ]
    monkeypatch.setattr(delivery_module, "INSERT_BYTES", 100)
    monkeypatch.setattr(delivery_module, "INSERT_ROWS", 100)
    groups = [[piece.first_id for piece in group] for group in grouped(cut)]
    assert groups == [[0, 1], [2], [3], [4, 5], [6]]


def test_a_request_whose_rows_are_a_thousand_times_its_size_arrives_and_stops_nobody(
    store: ChdbStore, spool: Spool
) -> None:
    resource = field(1, field(1, field(1, b"k") + field(2, string("r" * 50_000))))
    spans = b"".join(span("huge", number=number) for number in range(1, 4001))
    body = field(1, field(2, spans) + resource)
    spool.append([request(span("ahead of huge")), body, request(span("behind huge"))])
    deliver(store, spool)
    asked = (
        "SELECT count(), uniqExact(SpanId), uniqExact(IngestId), min(length(ResourceAttributes['k']))"
        " FROM otel.otel_traces WHERE SpanName = 'huge'"
    )
    assert store.query(asked).body == b"4000\t4000\t4000\t50000\n"
    assert len(kept(store, "ahead of huge")) == len(kept(store, "behind huge")) == 1
    store.execute("TRUNCATE TABLE otel.otel_traces")


@pytest.mark.parametrize("share", [0, 3, 10], ids=["nothing of it", "some of it", "all of it"])
def test_a_batch_in_doubt_is_once_in_the_store_and_its_neighbours_stay(
    share: int, store: ChdbStore, tmp_path: Path
) -> None:
    """The process was killed while it inserted; rows of others have the numbers just before and after."""
    name = f"doubt {share}"
    spool = Spool(tmp_path / "spool", max_bytes=1 << 30, fsync="off")
    spool.append([request(*(span(name, number=number) for number in range(5)))])
    spool.append([request(*(span(name, number=number) for number in range(5, 10)))])
    batch = spool.read(1 << 20)
    assert batch is not None
    spool.begin(batch)
    rows = [half for piece in pieces(batch.records, batch.numbers) for half in piece.halves()]
    while any(row.count > 1 for row in rows):
        rows = [half for row in rows for half in (row.halves() if row.count > 1 else [row])]
    store.insert(TRACES, [row.data for row in rows[:share]], batch.name)
    neighbours = [batch.numbers[0] - 1, batch.end_number]
    for piece in pieces([request(span(f"beside {name}"))] * 2, neighbours):
        store.insert(TRACES, [piece.data], "another")
    die(spool)
    with closing(Spool(tmp_path / "spool", max_bytes=1 << 30, fsync="off")) as again:
        assert again.figures().in_doubt_bytes > 0
        deliver(store, again)
    asked = f"SELECT count(), uniqExact(SpanId) FROM otel.otel_traces WHERE SpanName = '{name}'"
    assert store.query(asked).body == b"10\t10\n"
    asked = f"SELECT IngestId FROM otel.otel_traces WHERE SpanName = 'beside {name}' ORDER BY IngestId"
    assert store.query(asked).body.split() == [b"%d" % number for number in neighbours]
