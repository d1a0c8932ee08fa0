"""What is acknowledged is well formed and in the spool; what is not is said so, and why."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_rows import field
from spooled import drain

from collector import ingest as ingest_module
from collector.ingest import THREAD_BYTES, Ingest, TooLargeError, UnavailableError, checked
from collector.nested import MalformedError
from collector.signals import METRICS, SIGNALS, TRACES, Signal
from collector.spool import Spool
from collector.spool_cursor import Position
from tracegrad.settings import Fsync

DEADLINE_S = 60


def request(name: str, size: int = 0) -> bytes:
    made = ExportTraceServiceRequest()
    made.resource_spans.add().scope_spans.add().spans.add(name=name, trace_state="x" * size)
    return made.SerializeToString()


class Disk:
    """`os.fsync`, as far as it is let: it can be held up, and fail."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may = threading.Semaphore(0)
        self.failures: list[Exception] = []

    def fsync(self, file: int) -> None:
        self.begun.release()
        assert self.may.acquire(timeout=DEADLINE_S)
        if self.failures:
            raise self.failures.pop(0)

    async def busy(self) -> None:
        """Return when one more sync waits for the disk."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=DEADLINE_S)

    def goes_on(self) -> None:
        """From now on nothing is held up."""
        self.may.release(1000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    yield made
    made.goes_on()


def opened(tmp_path: Path, fsync: Fsync, **options: int) -> Spool:
    return Spool(tmp_path / "spool", fsync=fsync, **{"max_bytes": 1 << 30, **options})


@asynccontextmanager
async def taking(
    spool: Spool, fsync: Fsync = "off", signal: Signal = TRACES
) -> AsyncIterator[tuple[Ingest, list[int]]]:
    """An ingest, and a list that grows with each request that is in."""
    appended: list[int] = []
    ingest = Ingest(signal, spool, fsync, lambda: appended.append(1))
    try:
        yield ingest, appended
    finally:
        await ingest.close()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with closing(opened(tmp_path, "off")) as made:
        yield made


async def test_what_is_acknowledged_is_in_the_spool_as_it_came(spool: Spool) -> None:
    bodies = [request("a"), request("large", THREAD_BYTES), request("not UTF-8").replace(b"not", b"\xff\xfe\xfd")]
    async with taking(spool) as (ingest, appended):
        for body in bodies:
            assert await ingest.store(body) is None
    assert len(appended) == 3
    assert drain(spool) == bodies


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
@pytest.mark.parametrize("padding", [0, THREAD_BYTES], ids=["small", "large"])
@pytest.mark.parametrize("body", [b"\xff", b"not protobuf", request("a")[:-1], b"\x0a\x05\x01"])
async def test_what_is_malformed_never_reaches_the_spool(
    body: bytes, padding: int, signal: Signal, spool: Spool
) -> None:
    async with taking(spool, signal=signal) as (ingest, appended):
        with pytest.raises(MalformedError, match=f"the body is not an OTLP {signal.name} export request"):
            await ingest.store(field(99, b"x" * padding) + body)
    assert appended == []
    assert spool.figures().waiting_bytes == 0


async def test_the_records_that_are_well_formed_are_stored_and_the_others_counted(spool: Spool) -> None:
    good = field(2, field(5, b"good"))
    async with taking(spool) as (ingest, appended):
        rejected = await ingest.store(field(1, field(2, good + field(2, b"\x2a\x09bad") + good)))
    assert rejected is not None
    assert rejected.count == 1
    assert "1 of its records are no protobuf" in rejected.message
    assert drain(spool) == [field(1, field(2, good + good))]
    assert appended == [1]


async def test_a_request_of_nothing_is_acknowledged_and_leaves_nothing(spool: Spool) -> None:
    async with taking(spool) as (ingest, appended):
        assert await ingest.store(b"") is None
    assert appended == []
    assert spool.figures().waiting_bytes == 0


async def test_a_spool_that_is_full_says_when_to_come_again_and_takes_it_then(tmp_path: Path) -> None:
    with closing(opened(tmp_path, "off", max_bytes=10_000)) as spool:
        async with taking(spool) as (ingest, appended):
            await ingest.store(request("a", 6000))
            with pytest.raises(UnavailableError, match="the spool of traces is full") as refused:
                await ingest.store(request("b", 6000))
            assert refused.value.full
            assert refused.value.retry_after_s > 1
            assert appended == [1]
            assert drain(spool) == [request("a", 6000)]
            await ingest.store(request("b", 6000))
            assert drain(spool) == [request("b", 6000)]


async def test_what_will_never_fit_is_not_told_to_come_again(tmp_path: Path) -> None:
    with closing(opened(tmp_path, "off", max_bytes=10_000)) as spool:
        async with taking(spool, signal=METRICS) as (ingest, appended):
            with pytest.raises(TooLargeError, match="send less at once, or raise spool_bytes"):
                await ingest.store(field(99, b"x" * 10_000))
    assert appended == []


async def test_a_disk_without_room_is_full_too(tmp_path: Path) -> None:
    with closing(opened(tmp_path, "off", keep_free_bytes=1 << 60)) as spool:
        async with taking(spool) as (ingest, appended):
            with pytest.raises(UnavailableError, match="cannot write to its disk") as refused:
                await ingest.store(request("a"))
    assert refused.value.full
    assert os.strerror(errno.ENOSPC) in str(refused.value)
    assert appended == []


@pytest.mark.parametrize("fsync", ["off", "interval"])
async def test_only_always_waits_for_the_disk(
    fsync: Fsync, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(tmp_path, fsync)) as spool:
        monkeypatch.setattr(os, "fsync", disk.fsync)
        async with taking(spool, fsync) as (ingest, appended):
            await ingest.store(request("a"))
            if fsync == "interval":
                await disk.busy()
            await ingest.store(request("b"))
            assert appended == [1, 1]
            disk.goes_on()
        assert drain(spool) == [request("a"), request("b")]
    assert fsync == "interval" or not disk.begun.acquire(blocking=False)


async def test_interval_syncs_again_after_a_failure(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk.failures = [OSError(errno.EIO, os.strerror(errno.EIO)), RuntimeError("a bug")]
    monkeypatch.setattr(ingest_module, "SYNC_S", 0.0)
    with closing(opened(tmp_path, "interval")) as spool:
        monkeypatch.setattr(os, "fsync", disk.fsync)
        async with taking(spool, "interval") as (ingest, _):
            for number in range(3):
                await ingest.store(request(f"span {number}"))
                await disk.busy()
                disk.may.release()
            disk.goes_on()
        assert disk.failures == []
        assert drain(spool) == [request(f"span {number}") for number in range(3)]
    assert "spool cannot sync signal=traces error=Input/output error" in caplog.text
    assert "spool sync broke signal=traces" in caplog.text


async def test_always_acknowledges_what_is_on_disk_and_nothing_that_came_after_the_sync_began(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(tmp_path, "always")) as spool:
        synced: list[Position] = []
        monkeypatch.setattr(spool, "sync", noted(spool.sync, synced))
        monkeypatch.setattr(os, "fsync", disk.fsync)
        async with taking(spool, "always") as (ingest, appended):
            early = [asyncio.create_task(ingest.store(request(f"early {number}"))) for number in range(3)]
            await disk.busy()
            late = asyncio.create_task(ingest.store(request("late")))
            await asyncio.sleep(0)
            assert len(appended) == 4
            assert not any(task.done() for task in (*early, late))
            assert synced == []
            disk.may.release(2)  # of the file, and of the directory that it is new in
            await asyncio.gather(*early)
            assert not late.done()
            assert synced[0] < spool.end
            disk.goes_on()
            await late
            assert synced[-1] == spool.end


def noted(sync: Callable[[], Position], ends: list[Position]) -> Callable[[], Position]:
    def call() -> Position:
        end = sync()
        ends.append(end)
        return end

    return call


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), "the collector's disk fails"),
        (RuntimeError("a bug"), "send it again"),
    ],
)
async def test_always_tells_all_who_wait_to_send_again_when_a_sync_fails_and_goes_on(
    failure: Exception, said: str, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.failures = [failure]
    with closing(opened(tmp_path, "always")) as spool:
        monkeypatch.setattr(os, "fsync", disk.fsync)
        async with taking(spool, "always") as (ingest, appended):
            waiting = [asyncio.create_task(ingest.store(request(f"span {number}"))) for number in range(3)]
            await disk.busy()
            assert len(appended) == 3
            disk.goes_on()
            for answer in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(answer, UnavailableError)
                assert said in str(answer)
                assert "a bug" not in str(answer)
                assert not answer.full
            await ingest.store(request("afterwards"))
        assert drain(spool)[-1] == request("afterwards")


async def test_a_sender_that_goes_away_does_not_stop_the_others(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(tmp_path, "always")) as spool:
        monkeypatch.setattr(os, "fsync", disk.fsync)
        async with taking(spool, "always") as (ingest, _):
            tasks = [asyncio.create_task(ingest.store(request(f"span {number}"))) for number in range(3)]
            await disk.busy()
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
            disk.goes_on()
            assert await asyncio.gather(tasks[0], tasks[2]) == [None, None]
            await ingest.store(request("afterwards"))
        assert len(drain(spool)) == 4


def test_a_request_whose_rows_would_be_a_thousand_times_its_size_is_refused() -> None:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add()
    spans.resource.attributes.add(key="large").value.string_value = "x" * 100_000
    scope = spans.scope_spans.add()
    for _ in range(20_000):
        scope.spans.add()
    with pytest.raises(TooLargeError, match="send fewer records at once"):
        checked(TRACES, request.SerializeToString())
    del scope.spans[5_000:]
    assert checked(TRACES, body := request.SerializeToString()) == (body, None)
