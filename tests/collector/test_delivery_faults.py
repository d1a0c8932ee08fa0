"""No fault of the store costs a row or stores one twice, and nothing in a request stops those behind it."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faulty_store import FaultyStore, first, named
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector import delivery as delivery_module
from collector.delivery import Delivery
from collector.signals import LOGS, METRICS, TRACES, Signal
from collector.spool import Spool
from collector.store import StoreError

DEADLINE_S = 60


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "INTERVAL_S", 0.0)
    monkeypatch.setattr(delivery_module, "GATHER_S", 0.001)
    monkeypatch.setattr(delivery_module, "FIRST_RETRY_S", 0.005)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with closing(Spool(tmp_path / "spool", max_bytes=1 << 30, fsync="off")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def died(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread may end with a traceback."""
    found: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", found.append)
    yield
    assert found == []


def request(*names: str) -> bytes:
    made = ExportTraceServiceRequest()
    scope = made.resource_spans.add().scope_spans.add()
    for name in names:
        scope.spans.add(name=name)
    return made.SerializeToString()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def deliver(store: Any, spool: Spool, signal: Signal = TRACES, until: Callable[[], bool] = lambda: True) -> None:
    """Until nothing waits."""
    delivery = Delivery(store, signal, spool)
    delivery.start()
    try:
        wait_until(lambda: until() and not spool.figures().waiting_bytes)
        wait_until(lambda: delivery.problem is None)
    finally:
        delivery.stop(0)


REFUSED = StoreError(36, "Code: 36. DB::Exception: not this", retryable=False)
FAULTS = [
    MemoryError("one time"),
    ValueError("a bug"),
    RecursionError(),
    OSError(28, "No space left on device"),
    StoreError(210, "Code: 210. DB::Exception: away", retryable=True),
    StoreError(0, "no network", retryable=True),
    StoreError(241, "Code: 241. DB::Exception: memory", retryable=True),
]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_an_insert_that_fails_for_a_while_loses_nothing(error: Exception, count: int, spool: Spool) -> None:
    store = FaultyStore(first(count, error))
    names = [f"span {number}" for number in range(30)]
    for start in range(0, 30, 3):
        spool.append([request(*names[start : start + 3])])
    deliver(store, spool)
    assert store.names == names
    assert spool.figures().losses.refused_records == 0


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_single_record_too(error: Exception, spool: Spool) -> None:
    store = FaultyStore(first(4, error))
    spool.append([request("alone")])
    deliver(store, spool)
    assert store.names == ["alone"]


def test_what_comes_while_it_fails_is_delivered_too(spool: Spool) -> None:
    store = FaultyStore(first(10**9, MemoryError()))
    delivery = Delivery(store, TRACES, spool)
    delivery.start()
    for number in range(20):
        spool.append([request(f"span {number}")])
        delivery.wake()
    wait_until(lambda: delivery.problem == "MemoryError()")
    store.fault = lambda rows: None
    wait_until(lambda: not spool.figures().waiting_bytes)
    delivery.stop(0)
    assert store.names == [f"span {number}" for number in range(20)]


@pytest.mark.parametrize("code", [241, 173])
@pytest.mark.parametrize("most", [1, 7])
def test_what_does_not_fit_the_memory_is_halved(code: int, most: int, spool: Spool) -> None:
    """At once, by the way that does not decode; nothing is refused, and nothing is tried again."""
    sizes = []

    def fault(rows: list[Any]) -> None:
        if len(rows) > most:
            raise StoreError(code, f"Code: {code}. DB::Exception: memory", retryable=True)
        sizes.append(len(rows))

    store = FaultyStore(fault)
    names = [f"span {number}" for number in range(100)]
    spool.append([request(*names[:90]), request(), request(*names[90:])])
    deliver(store, spool)
    assert store.names == names
    assert sum(sizes) == 100
    assert spool.figures().losses.refused_records == 0


@pytest.mark.parametrize("where", [0, 17, 39])
def test_a_record_that_the_store_refuses_for_ever_is_set_aside_once(where: int, spool: Spool, tmp_path: Path) -> None:
    poison = f"span {where}"
    store = FaultyStore(named(poison, REFUSED))
    names = [f"span {number}" for number in range(40)]
    bodies = [request(*names[start : start + 10]) for start in range(0, 40, 10)]
    spool.append(bodies)
    deliver(store, spool)
    assert store.names == [name for name in names if name != poison]
    assert spool.figures().losses.refused_records == 1
    (aside,) = (tmp_path / "spool" / "refused").iterdir()
    assert aside.read_bytes() == bodies[where // 10]
    spool.append([request("what follows")])
    deliver(store, spool)
    assert store.names[-1] == "what follows"


def test_several_such_records_in_several_requests(spool: Spool) -> None:
    store = FaultyStore(named("bad", REFUSED))
    spool.append([request("bad", "a", "bad"), request("b"), request("bad"), request("bad", "bad", "c")])
    deliver(store, spool)
    assert store.names == ["a", "b", "c"]
    assert spool.figures().losses.refused_records == 3


def test_a_disk_that_cannot_keep_what_is_refused_is_waited_for(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyStore(named("bad", REFUSED))
    keep, failures = spool.reject, [OSError(28, "No space left on device")] * 2

    def reject(record: Any, reason: str) -> None:
        if failures:
            raise failures.pop()
        keep(record, reason)

    monkeypatch.setattr(spool, "reject", reject)
    spool.append([request("a", "bad", "b")])
    deliver(store, spool)
    assert store.names == ["a", "b"]
    assert spool.figures().losses.refused_records == 1


@pytest.mark.parametrize("away", [{2}, {4}, {3, 6}, {5, 7, 9}])
def test_a_store_that_goes_away_while_the_refused_is_looked_for(away: set[int], spool: Spool) -> None:
    inserts = itertools.count()

    def fault(rows: list[Any]) -> None:
        if next(inserts) in away:
            raise StoreError(210, "Code: 210. DB::Exception: away", retryable=True)
        named("bad", REFUSED)(rows)

    store = FaultyStore(fault)
    spool.append([request("a", "b", "c", "d"), request("bad")])
    deliver(store, spool)
    assert next(inserts) > max(away)
    assert store.names == ["a", "b", "c", "d"]
    assert spool.figures().losses.refused_records == 1


@pytest.mark.parametrize("problem", ["MemoryError()", "an insert of traces is still at work"])
def test_told_to_stop_in_a_pause_it_ends_and_the_batch_stays(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(first(10**9, MemoryError()))
    store.running = [True] * 10**6
    if problem == "MemoryError()":  # it waits to try again
        monkeypatch.setattr(delivery_module, "FIRST_RETRY_S", 600.0)
    with closing(Spool(tmp_path / "spool", max_bytes=1 << 30, fsync="off")) as spool:
        spool.append([request("a", "b"), request("c")])
        delivery = Delivery(store, TRACES, spool)
        delivery.start()
        wait_until(lambda: delivery.problem == problem)
        delivery.stop(0)
        assert spool.figures().waiting_records == 2
        assert "Stopping" not in caplog.text
    store.fault, store.running = lambda rows: None, []
    with closing(Spool(tmp_path / "spool", max_bytes=1 << 30, fsync="off")) as again:
        assert again.figures().in_doubt_bytes == again.figures().waiting_bytes > 0
        deliver(store, again)
    assert store.names == ["a", "b", "c"]


def test_an_insert_that_may_be_at_work_is_waited_for_before_its_rows_are_taken_out(spool: Spool) -> None:
    store = FaultyStore(first(1, StoreError(0, "the connection broke", retryable=True)))
    store.running = [True, True, False]
    spool.append([request("a", "b")])
    deliver(store, spool)
    assert store.calls == ["insert", "is_running", "is_running", "is_running", "delete", "insert"]
    assert store.names == ["a", "b"]


@pytest.mark.parametrize("method", ["is_running", "delete"])
def test_taking_out_that_fails_is_tried_again_before_anything_is_inserted(
    method: str, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FaultyStore(first(1, StoreError(0, "the connection broke", retryable=True)))
    works, failures = getattr(store, method), [StoreError(0, "away", retryable=True), RuntimeError("a bug")]

    def fails(*asked: Any) -> Any:
        if failures:
            raise failures.pop()
        return works(*asked)

    monkeypatch.setattr(store, method, fails)
    spool.append([request("a", "b")])
    deliver(store, spool)
    assert store.names == ["a", "b"]
    assert store.calls.count("insert") == 2


@pytest.mark.parametrize(("method", "names"), [("read", ["a"]), ("begin", ["a"]), ("read", [])])
def test_a_spool_whose_disk_fails_for_a_while(
    method: str, names: list[str], spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "LONGEST_RETRY_S", 0.005)
    store, works, failures = FaultyStore(), getattr(spool, method), [OSError(5, "Input/output error")] * 2

    def fails(argument: Any) -> Any:
        if failures:
            raise failures.pop()
        return works(argument)

    monkeypatch.setattr(spool, method, fails)
    for name in names:
        spool.append([request(name)])
    deliver(store, spool, until=lambda: not failures)
    assert store.names == names


def test_metrics_are_decoded_before_the_engine_sees_them(spool: Spool) -> None:
    made = ExportMetricsServiceRequest()
    metric = made.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.gauge.data_points.add(as_int=1).attributes.add(key="k").value.int_value = 5
    store = FaultyStore()
    spool.append([made.SerializeToString()])
    deliver(store, spool, METRICS)
    (row,) = store.rows.values()
    assert row.record.gauge.data_points[0].attributes[0].value.string_value == "5"
    assert store.calls == ["insert"]


def test_after_a_nested_value_the_next_are_decoded_first(spool: Spool) -> None:
    """Else each batch would cost a refusal."""

    def fault(rows: list[Any]) -> None:
        if any(row.record.body.HasField("kvlist_value") for row in rows):
            raise StoreError(395, "Code: 395. DB::Exception: nested", retryable=False)

    made = ExportLogsServiceRequest()
    body = made.resource_logs.add().scope_logs.add().log_records.add().body
    body.kvlist_value.values.add(key="k").value.int_value = 5
    store = FaultyStore(fault)
    delivery = Delivery(store, LOGS, spool)
    delivery.start()
    for _ in range(2):
        spool.append([made.SerializeToString()])
        delivery.wake()
        wait_until(lambda: not spool.figures().waiting_bytes)
    delivery.stop(0)
    assert [row.record.body.string_value for row in store.rows.values()] == ['{"k":5}'] * 2
    assert store.calls == ["insert", "is_running", "delete", "insert", "insert"]
