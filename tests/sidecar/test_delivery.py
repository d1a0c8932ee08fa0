"""Every span that is put reaches a collector on a real socket, or is counted; whatever disk and collector do."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from full_disk import full_disk
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from sidecar_harness import Harness, listening

from sidecar import delivery as module
from sidecar.delivery import Delivery
from tracegrad.otlp import SpanContext, span
from tracegrad.otlp_request import retry_after_s

MEGABYTE = 1 << 20


@dataclass
class Collector:
    """Keeps the names of the spans that it took, and how it answered each request."""

    url: str = ""
    names: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """The next answers; 200 after them."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of every answer that is not 200."""
    poison: tuple[str, int] | None = None
    """A span that makes requests fail, and the status they get."""
    rejected: int = 0
    held: asyncio.Event | None = None
    """Answer nothing until it is set."""
    asked_at: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def traces(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        self.asked_at.append(time.monotonic())
        names = [one.name for r in message.resource_spans for s in r.scope_spans for one in s.spans]
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self.at_once -= 1
        status = self.statuses.pop(0) if self.statuses else 200
        if self.poison is not None and self.poison[0] in names:
            status = self.poison[1]
        if status != 200:
            return web.Response(status=status, headers=self.headers)
        self.names += names
        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = self.rejected
        return web.Response(body=answer.SerializeToString())

    @contextlib.asynccontextmanager
    async def listen(self, port: int = 0) -> AsyncIterator["Collector"]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/traces", self.traces)
        async with listening(app, port) as self.url:
            yield self


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with Collector().listen() as running:
        yield running


def delivery(url: str, root: Path, **values: Any) -> Delivery:
    return Delivery(url, "test", root / "spool", **{"spool_bytes": 64 * MEGABYTE, "close_timeout_s": 5.0, **values})


def encoded(name: str, size: int = 500) -> bytes:
    made = span(name, SpanContext.new(), start_ns=1, end_ns=2, values={"text": "x" * size})
    return bytes(made.SerializeToString())


def put(to: Delivery, *names: str, size: int = 500) -> list[bool]:
    return [to.put(encoded(name, size)) for name in names]


def numbered(count: int, prefix: str = "s") -> list[str]:
    return [f"{prefix}{number:05d}" for number in range(count)]


def segments(root: Path) -> list[Path]:
    return sorted((root / "spool").glob("*/*.segment"))


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_spans_arrive_in_order_and_leave_nothing_behind(collector: Collector, tmp_path: Path) -> None:
    wanted = numbered(3000)
    async with delivery(collector.url, tmp_path) as to:
        for name in wanted:
            assert to.put(encoded(name))
            if name.endswith("00"):
                await asyncio.sleep(0)
        assert await to.flush(10)
        assert (to.counters.queued, to.counters.sent, to.counters.lost) == (3000, 3000, 0)
        assert to.store.oldest_s == 0
    assert collector.names[:100] == wanted[:100], "oldest first, though several requests are under way at once"
    assert sorted(collector.names) == wanted
    assert segments(tmp_path) == []


async def test_a_clean_stop_sends_the_rest_and_nothing_comes_twice(collector: Collector, tmp_path: Path) -> None:
    for part in range(3):
        async with delivery(collector.url, tmp_path) as to:
            put(to, *numbered(50, f"part{part}-"))
    assert collector.names == [name for part in range(3) for name in numbered(50, f"part{part}-")]


async def test_a_collector_that_comes_late_gets_everything_oldest_first(tmp_path: Path, free_port: Any) -> None:
    port = free_port()
    late = Collector()
    async with delivery(f"http://127.0.0.1:{port}", tmp_path) as to:
        put(to, *numbered(2000), size=5000)
        await until(lambda: to.counters.retries > 1)
        assert to.store.spool.waiting_bytes > 2000 * 5000
        assert to.store.memory.size == 0
        assert to.store.oldest_s > 0
        async with late.listen(port):
            assert await to.flush(20)
    assert late.names[:40] == numbered(40)
    assert sorted(late.names) == numbered(2000)


async def test_what_cannot_be_sent_waits_for_the_next_start(tmp_path: Path, free_port: Any) -> None:
    port = free_port()
    late = Collector()
    for part in range(3):
        async with delivery(f"http://127.0.0.1:{port}", tmp_path, close_timeout_s=0.2) as to:
            put(to, *numbered(100, f"part{part}-"))
    async with late.listen(port), delivery(f"http://127.0.0.1:{port}", tmp_path) as to:
        assert await to.flush(10)
        assert to.counters.adopted == 300
    assert late.names == [name for part in range(3) for name in numbered(100, f"part{part}-")]


async def test_a_collector_that_hangs_keeps_a_bounded_number_of_requests(collector: Collector, tmp_path: Path) -> None:
    collector.held = asyncio.Event()
    window = 4 * module.BATCH_BYTES
    async with delivery(collector.url, tmp_path, window_bytes=window, close_timeout_s=0.1) as to:
        put(to, *numbered(4000), size=1000)
        await until(lambda: collector.at_once >= 4)
        await asyncio.sleep(0.2)
        assert collector.most_at_once <= 5
        assert to.counters.sent == 0
    collector.held.set()
    collector.held = None
    collector.names.clear()
    async with delivery(collector.url, tmp_path) as to:
        assert await to.flush(20)
    assert sorted(set(collector.names)) == numbered(4000)


@pytest.mark.parametrize("status", [401, 404, 408, 429, 500, 502, 503])
async def test_an_answer_that_does_not_blame_the_spans_is_no_loss(
    collector: Collector, tmp_path: Path, status: int
) -> None:
    collector.statuses = [status, status]
    async with delivery(collector.url, tmp_path) as to:
        put(to, "kept")
    assert collector.names == ["kept"]
    assert (to.counters.retries, to.counters.lost) == (2, 0)


async def test_retry_after_is_honoured(collector: Collector, tmp_path: Path) -> None:
    collector.statuses, collector.headers = [503], {"retry-after": "1"}
    async with delivery(collector.url, tmp_path) as to:
        put(to, "kept")
        assert await to.flush(10)
    first, second = collector.asked_at
    assert second - first >= 1


def test_what_retry_after_may_say() -> None:
    later = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    assert (retry_after_s("7"), retry_after_s(None), retry_after_s("soon"), retry_after_s("-1")) == (7, 0, 0, 0)
    assert 97 < retry_after_s(later) <= 100
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0


@pytest.mark.parametrize("status", [400, 413, 500])
async def test_one_poisonous_span_does_not_take_the_others_with_it(
    collector: Collector, tmp_path: Path, status: int
) -> None:
    collector.poison = ("s00003", status)
    async with delivery(collector.url, tmp_path) as to:
        put(to, *numbered(8))
        assert await to.flush(20)
    assert sorted(collector.names) == [name for name in numbered(8) if name != "s00003"]
    assert (to.counters.sent, to.counters.dropped_refused) == (7, 1)
    assert segments(tmp_path) == []


async def test_a_partial_success_counts_what_was_rejected(collector: Collector, tmp_path: Path) -> None:
    collector.rejected = 2
    async with delivery(collector.url, tmp_path) as to:
        put(to, *numbered(5))
    assert (to.counters.sent, to.counters.dropped_refused) == (3, 2)


async def test_a_full_spool_drops_the_newest_and_counts_them(
    tmp_path: Path, free_port: Any, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    late = Collector()
    async with delivery(f"http://127.0.0.1:{port}", tmp_path, spool_bytes=MEGABYTE) as to:
        taken = put(to, *numbered(2000), size=1000)
        kept = taken.index(False)
        assert not any(taken[kept:])
        assert to.counters.dropped_spool_full == 2000 - kept > 500
        assert [one for one in caplog.messages if one.startswith("spans lost")] == [
            "spans lost so far spool_full=1 memory_full=0 refused=0 torn=0"
        ]
        async with late.listen(port):
            assert await to.flush(20)
            assert put(to, "after") == [True]
            assert await to.flush(20)
    assert sorted(late.names) == sorted([*numbered(kept), "after"])


async def test_with_the_disk_full_spans_are_sent_from_memory(collector: Collector, tmp_path: Path) -> None:
    async with delivery(collector.url, tmp_path) as to:
        put(to, *numbered(10, "a"))
        with full_disk():
            assert all(put(to, *numbered(100, "b")))
            assert to.store.disk_problem == "File too large"
            assert to.store.memory.size > 0
            assert await to.flush(20)
        await until(lambda: put(to, "c") and to.store.disk_problem is None)
        assert await to.flush(20)
        assert to.counters.lost == 0
    assert [name for name in collector.names if name != "c"] == numbered(10, "a") + numbered(100, "b")


async def test_agents_are_served_while_the_disk_is_full(harness: Harness) -> None:
    with full_disk():
        for _ in range(20):
            assert (await harness.chat({})).status == 200
        spans = await harness.receiver.wait(20)
        page = await (await harness.session.get(f"{harness.admin}/metrics")).text()
    assert all(one.attributes["tracegrad.trainable"] for one in spans)
    assert "tracegrad_sidecar_spool_disk_failing 1\n" in page
    assert 'tracegrad_sidecar_spans_total{state="dropped_memory_full"} 0\n' in page


async def test_with_the_disk_full_and_no_collector_memory_is_bounded_and_goes_to_disk_later(
    tmp_path: Path, free_port: Any
) -> None:
    port = free_port()
    late = Collector()
    async with delivery(f"http://127.0.0.1:{port}", tmp_path, memory_bytes=MEGABYTE, close_timeout_s=0.1) as to:
        put(to, *numbered(10, "a"))
        with full_disk():
            taken = put(to, *numbered(2000, "b"), size=1000)
            kept = taken.index(False)
            assert 500 < kept < 1100
            assert to.counters.dropped_memory_full == 2000 - kept
            assert to.store.memory.size <= MEGABYTE
        await until(lambda: to.store.disk_problem is None)
        put(to, "c")
        await until(lambda: not to.store.memory.size or to.store.memory.size < MEGABYTE / 2)
    async with late.listen(port), delivery(f"http://127.0.0.1:{port}", tmp_path) as to:
        assert await to.flush(20)
    assert sorted(late.names) == sorted([*numbered(10, "a"), *numbered(kept, "b"), "c"])


async def test_what_is_in_memory_when_the_process_ends_is_counted_as_lost(
    tmp_path: Path, free_port: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with full_disk():
        async with delivery(f"http://127.0.0.1:{free_port()}", tmp_path, close_timeout_s=0.1) as to:
            put(to, *numbered(10))
    assert to.counters.dropped_memory_full == 10
    assert "spans lost, neither disk nor collector took them count=10" in caplog.messages


async def test_a_directory_that_cannot_be_made_is_used_once_it_can(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file is in the way")
    async with delivery(collector.url, tmp_path) as to:
        assert all(put(to, *numbered(10)))
        assert to.store.disk_problem == "Not a directory" or "exists" in str(to.store.disk_problem)
        assert await to.flush(10)
        (tmp_path / "spool").unlink()
        await until(lambda: put(to, "more") and to.store.disk_problem is None)
        assert segments(tmp_path)
    assert collector.names[:10] == numbered(10)
    assert to.counters.lost == 0


async def test_what_a_process_that_died_left_is_sent_while_running(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.05)
    dead = delivery("http://127.0.0.1:1", tmp_path)
    dead.store.open()
    async with delivery(collector.url, tmp_path) as to:
        assert all(dead.store.put(encoded(name)) for name in numbered(10))
        assert {path.parent.name for path in segments(tmp_path)} == {"0"}
        await asyncio.sleep(0.6)
        assert collector.names == [], "it is not dead yet"
        assert dead.store.spool._slot is not None
        dead.store.spool._slot.release()
        await until(lambda: len(collector.names) >= 10)
        assert await to.flush(10)
        assert to.counters.adopted == 10
    assert collector.names == numbered(10)
    assert segments(tmp_path) == []


async def test_syncing_to_disk_loses_nothing(collector: Collector, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    wanted = numbered(2000)
    async with delivery(collector.url, tmp_path, fsync=True) as to:
        for name in wanted:
            to.put(encoded(name, 10_000))
            await asyncio.sleep(0)
        assert await to.flush(20)
    assert sorted(collector.names) == wanted
