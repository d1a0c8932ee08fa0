"""Group commit from inside: framing, bounds, and batches that the engine refuses in part."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector import ingest
from collector.engine import Engine
from collector.ingest import Ingest, UnavailableError, Writer, is_framed
from collector.migrations import migrate
from collector.nested import MalformedError
from collector.signals import TRACES


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory = tmp_path_factory.mktemp("ingest")
    with Engine(directory / "store") as opened, contextlib.chdir(directory):
        with opened.connection() as connection:
            migrate(connection)
        yield opened


def named(name: str, nested: bool = False) -> bytes:
    """A request with one span of this name."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name=name, trace_id=b"t" * 16)
    if nested:
        span.attributes.add(key="k").value.kvlist_value.values.add(key="a").value.bool_value = True
    return request.SerializeToString()


def stored(engine: Engine, prefix: str) -> list[str]:
    with engine.connection() as connection:
        answer = connection.query(f"SELECT SpanName FROM otel.otel_traces WHERE SpanName LIKE '{prefix}%' ORDER BY ALL")
    return answer.body.decode().split()


requests = st.lists(st.tuples(st.text(), st.binary(max_size=300)), max_size=4)


@given(spans=requests, cut=st.integers(1, 300))
def test_whole_messages_are_framed_and_cut_ones_are_not(spans: list[tuple[str, bytes]], cut: int) -> None:
    request = ExportTraceServiceRequest()
    for name, trace_id in spans:
        request.resource_spans.add().scope_spans.add().spans.add(name=name, trace_id=trace_id)
    body = request.SerializeToString()
    assert is_framed(body)
    ends = {0}
    for resource in request.resource_spans:
        size = resource.ByteSize()
        ends.add(max(ends) + 1 + (1 if size < 128 else 2) + size)
    assert is_framed(body[:-cut]) == (max(len(body) - cut, 0) in ends)


@given(st.binary(max_size=40))
def test_framing_never_raises(body: bytes) -> None:
    assert is_framed(body) in {True, False}


def test_a_refused_batch_is_stored_but_for_the_guilty(engine: Engine) -> None:
    writer = Writer(engine.connect(), TRACES)
    malformed = b"\x0a\x04\x12\x02\x12\x7f"
    outcomes = writer.write([named("a-1"), malformed, named("a-2", nested=True), named("a-3")])
    writer.close()
    assert [type(outcome) for outcome in outcomes] == [type(None), MalformedError, type(None), type(None)]
    assert stored(engine, "a-") == ["a-1", "a-2", "a-3"]


def test_what_the_engine_alone_refuses_is_to_be_sent_again_and_harms_nobody(engine: Engine) -> None:
    with engine.connection() as connection:
        connection.query("ALTER TABLE otel.otel_traces ADD CONSTRAINT c CHECK SpanName != 'b-poison'")
    writer = Writer(engine.connect(), TRACES)
    outcomes = writer.write([named("b-1"), named("b-poison"), named("b-2")])
    writer.close()
    with engine.connection() as connection:
        connection.query("ALTER TABLE otel.otel_traces DROP CONSTRAINT c")
    assert [type(outcome) for outcome in outcomes] == [type(None), UnavailableError, type(None)]
    assert "469" in str(outcomes[1])
    assert stored(engine, "b-") == ["b-1", "b-2"]


def test_the_writer_answers_even_when_it_breaks(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    writer = Writer(engine.connect(), TRACES)
    monkeypatch.setattr(writer, "_insert", broken)
    outcomes = writer.write([named("c-1"), named("c-2")])
    writer.close()
    assert [type(outcome) for outcome in outcomes] == [UnavailableError, UnavailableError]


async def test_concurrent_requests_share_inserts(engine: Engine) -> None:
    sizes: list[int] = []
    shared = Ingest(engine, TRACES)
    write = shared._writer.write
    shared._writer.write = lambda bodies: sizes.append(len(bodies)) or write(bodies)  # type: ignore[method-assign,func-returns-value]
    await asyncio.gather(*(shared.store(named(f"d-{index:03}")) for index in range(200)))
    await shared.close()
    assert sum(sizes) == 200
    assert len(sizes) <= 3
    assert len(stored(engine, "d-")) == 200


async def test_what_waits_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "WAITING_BYTES", 3 * len(named("e-0")))
    monkeypatch.setattr(ingest, "BATCH_BYTES", 2 * len(named("e-0")))
    full = Ingest(engine, TRACES)
    outcomes = await asyncio.gather(*(full.store(named(f"e-{index}")) for index in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 3 + [UnavailableError] * 2
    assert full.waiting_bytes == 0
    await full.store(named("e-9"))  # and there is room again
    await full.close()
    assert stored(engine, "e-") == ["e-0", "e-1", "e-2", "e-9"]


async def test_close_stores_what_is_waiting(engine: Engine) -> None:
    closing = Ingest(engine, TRACES)
    sent = [asyncio.create_task(closing.store(named(f"f-{index}"))) for index in range(3)]
    await asyncio.sleep(0)
    sent[0].cancel()  # its sender has gone
    await closing.close()
    assert await asyncio.gather(*sent[1:]) == [None, None]
    assert {"f-1", "f-2"} <= set(stored(engine, "f-"))
