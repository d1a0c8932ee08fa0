"""From a call's end to its span: journalled while its engine is asked, whole once that answered."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm
from full_disk import full_disk
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from sidecar_harness import Harness
from sidecar_process import until

from sidecar import call as call_module
from sidecar import recorder as module
from sidecar.call import Call, bare_spans, verdicts
from sidecar.chat_answer import Answer, Choice, Numbers
from sidecar.delivery import Delivery
from sidecar.identity import Target, identify
from sidecar.metrics import Metrics
from sidecar.recorder import VERDICT_BYTES, Recorder
from sidecar.replica import Stamp
from sidecar.traits import Traits
from tracegrad import names
from tracegrad.otlp import attributes

STAMP = Stamp(1, 7)
PROMPT = list(range(1000, 1100))
SAMPLED = [1, 2]


class Engine:
    """A replica whose word can be held back."""

    url, stamp, traits = "http://engine", STAMP, Traits("raw_logprobs")

    def __init__(self) -> None:
        self.word = asyncio.Event()

    async def confirmed(self) -> Stamp:
        await self.word.wait()
        return STAMP


class Sidecar:
    """The parts that record, without a server."""

    def __init__(self, directory: Path, spool_bytes: int = 64 << 20) -> None:
        self.metrics = Metrics()
        self.delivery = Delivery("http://127.0.0.1:1", "test", directory / "spool", spool_bytes=spool_bytes)
        self.delivery.store.open()
        self.recorder = Recorder(self.delivery, self.metrics)
        self.engine = Engine()

    def call(self, prompt: list[int], n: int = 1, rollout: str | None = "r") -> Call:
        call = Call(identify(Target("/v1/chat/completions", rollout, 0), {}), time.time_ns(), policy="policy")
        call.replica, call.start, call.status = self.engine, STAMP, 200  # type: ignore[assignment]
        call.body = {"model": "policy", "messages": [{"role": "user", "content": "x" * len(prompt)}]}
        choices = (Choice(place, {}, "stop", Numbers.of(SAMPLED), Numbers.of([-0.5, -1.5])) for place in range(n))
        call.answer = Answer("a", "policy", tuple(choices), Numbers.of(prompt), len(prompt), n * len(SAMPLED))
        return call

    async def finish(self, call: Call) -> Call:
        """It ends, and stands in the journal."""
        before = self.delivery.journal.calls
        self.recorder.finish(call)
        await until(lambda: self.delivery.journal.calls > before)
        return call

    async def spans(self) -> list[Span]:
        """What went into the spool since last time."""
        found: list[Span] = []
        while (batch := await self.delivery.store.take(1 << 20)) is not None:
            found += [Span.FromString(bytes(record)) for record in batch.records]
            self.delivery.store.acknowledge(batch)
        return found


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    started = Sidecar(tmp_path)
    yield started
    started.delivery.store.close()


def values(span: Span) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "") for pair in span.attributes}


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("end", [STAMP, None], ids=["proved", "unproved"])
def test_a_span_and_its_verdict_make_the_whole_span(n: int, end: Stamp | None, tmp_path: Path) -> None:
    call = Call(identify(Target("/v1/chat/completions", "r", 0), {}), 1, policy="policy", body={"messages": []})
    ids = Numbers.of(SAMPLED)
    choices = tuple(Choice(place, {}, "stop", ids, Numbers.of([-0.5, -1.5])) for place in range(n))
    call.start, call.end, call.answer = STAMP, end, Answer("a", "m", choices, Numbers.of([5]), 1, n * len(SAMPLED))
    reason = "error" if n == 0 else None if end else "mixed_versions"
    verdict = {
        names.POLICY_VERSION: 7 if end else None,
        names.TRAINABLE: reason is None,
        names.UNTRAINABLE_REASON: reason,
    }
    bare, found = list(bare_spans(call)), verdicts(call, call.why_untrainable())
    assert len(bare) == len(found) == {0: 1, 1: 1, 3: 4}[n]
    for place, (span, rest) in enumerate(zip(bare, found, strict=True)):
        whole = Span.FromString(span)
        assert not any(pair.key in verdict for pair in whole.attributes)
        if place < max(n, 1):
            whole.attributes.extend(attributes(verdict))
        assert Span.FromString(span + rest) == whole
        assert len(rest) <= VERDICT_BYTES


async def test_what_is_exact_in_a_call_is_looked_at_once(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noting(name: str) -> None:
        looked = getattr(call_module, name)
        monkeypatch.setattr(call_module, name, lambda *given: seen.append(name) or looked(*given))

    noting("forced")
    noting("inexact_reason")
    sidecar.engine.word.set()
    await sidecar.finish(sidecar.call(PROMPT, n=2))
    await until(lambda: sidecar.delivery.counters.queued == 3)
    assert sorted(seen) == ["forced", "inexact_reason", "inexact_reason"]


async def test_a_call_stands_in_the_journal_until_it_is_in_the_spool(sidecar: Sidecar) -> None:
    await sidecar.finish(sidecar.call(PROMPT, n=2))
    assert await sidecar.spans() == []
    sidecar.engine.word.set()
    await until(lambda: sidecar.delivery.counters.queued == 3)
    assert sidecar.delivery.journal.calls == 0
    *choices, whole = [values(one) for one in await sidecar.spans()]
    assert [(one[names.TRAINABLE], one[names.POLICY_VERSION]) for one in choices] == [(True, 7)] * 2
    assert names.TRAINABLE not in whole
    assert sidecar.metrics.choices == {"": 2}
    await sidecar.recorder.close(1)
    assert not list(sidecar.delivery.store.spool._root.glob("*/*.journal"))


async def test_a_burst_is_recorded_once_and_in_order(sidecar: Sidecar) -> None:
    calls = [sidecar.call(PROMPT, rollout=None) for _ in range(200)]
    sidecar.engine.word.set()  # so that some are proved before they are built
    for call in calls:
        sidecar.recorder.finish(call)
    await until(lambda: sidecar.delivery.counters.queued == 200)
    await sidecar.recorder.close(1)
    assert [one.span_id for one in await sidecar.spans()] == [call.identity.context.span_id for call in calls]


async def test_at_the_end_what_is_not_proved_is_recorded_so(sidecar: Sidecar) -> None:
    await sidecar.finish(sidecar.call(PROMPT))
    sidecar.recorder.finish(sidecar.call(PROMPT))
    await sidecar.recorder.close(0.01)
    sidecar.recorder.finish(sidecar.call(PROMPT))
    assert [values(one)[names.UNTRAINABLE_REASON] for one in await sidecar.spans()] == ["mixed_versions"] * 3
    assert sidecar.delivery.journal.calls == 0


async def test_an_engine_that_never_answers_costs_no_call(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONFIRM_LIMIT_S", 0.05)
    sidecar.recorder.finish(sidecar.call(PROMPT))
    await until(lambda: sidecar.delivery.counters.queued == 1)
    (span,) = await sidecar.spans()
    assert values(span)[names.UNTRAINABLE_REASON] == "mixed_versions"
    await sidecar.recorder.close(1)


async def test_a_call_that_cannot_be_told_costs_no_other(sidecar: Sidecar, caplog: pytest.LogCaptureFixture) -> None:
    odd, even = sidecar.call(PROMPT), sidecar.call(PROMPT)
    odd.chat = lambda _: {}["no"]
    sidecar.recorder.finish(odd)
    await sidecar.finish(even)
    sidecar.engine.word.set()
    await until(lambda: sidecar.delivery.counters.queued == 1)
    assert [one.span_id for one in await sidecar.spans()] == [even.identity.context.span_id]
    assert sidecar.metrics.unrecorded == 1
    assert sidecar.metrics.choices == {"": 1}
    assert "call could not be recorded rollout=r" in caplog.messages
    await sidecar.recorder.close(1)


async def test_a_call_extends_one_whose_version_is_still_being_asked_for(sidecar: Sidecar) -> None:
    first = await sidecar.finish(sidecar.call(PROMPT))
    second = await sidecar.finish(sidecar.call([*PROMPT, *SAMPLED, 5]))
    sidecar.engine.word.set()
    await until(lambda: sidecar.delivery.counters.queued == 2)
    found = [values(one) for one in await sidecar.spans()]
    assert found[1][names.EXTENDS_SPAN_ID] == first.identity.context.span_id.hex()
    assert found[1][names.PROMPT_TOKEN_IDS] == "[5]"
    assert second.growth is not None
    assert sidecar.delivery.store.spool.promised_bytes == 0
    await sidecar.recorder.close(1)


async def test_nothing_extends_a_call_for_which_the_spool_has_no_room(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, spool_bytes=1 << 20)
    spool = sidecar.delivery.store.spool
    filling = b"x" * 1000
    while spool.has_room(2 * len(filling)):
        sidecar.delivery.put(filling)
    await sidecar.finish(sidecar.call([*PROMPT] * 5))
    assert spool.promised_bytes == 0
    extending = sidecar.call([*[*PROMPT] * 5, *SAMPLED, 5])
    await sidecar.finish(extending)
    assert extending.growth is not None
    assert extending.growth.values() == {}
    await sidecar.recorder.close(0.01)
    sidecar.delivery.store.close()


async def test_room_that_was_promised_is_there(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, spool_bytes=1 << 20)
    call = await sidecar.finish(sidecar.call([*PROMPT] * 20, n=3))
    filling = b"x" * 100
    while sidecar.delivery.put(filling):
        pass
    dropped = sidecar.delivery.counters.dropped_spool_full
    sidecar.engine.word.set()
    await until(lambda: sidecar.delivery.journal.calls == 0)
    assert sidecar.delivery.counters.dropped_spool_full == dropped
    assert call.growth is not None
    await sidecar.recorder.close(1)
    sidecar.delivery.store.close()


async def test_a_disk_that_fills_up_while_the_engine_is_asked(harness: Harness, fake: FakeVllm, tmp_path: Path) -> None:
    fake.telling.clear()
    assert (await harness.chat({})).status == 200
    await journalled(harness, 1)
    with full_disk():
        assert (await harness.chat({"n": 2})).status == 200
        await until(lambda: not list((tmp_path / "data").glob("spool/*/*.journal")))
        fake.telling.set()
        spans = await harness.receiver.wait(4)
        page = await metrics(harness)
    assert [one.attributes.get("tracegrad.trainable") for one in spans].count(True) == 3
    assert "tracegrad_sidecar_journal_skipped_total 1\n" in page
    assert "tracegrad_sidecar_journal_calls 0\n" in page


async def metrics(harness: Harness) -> str:
    return await (await harness.session.get(f"{harness.admin}/metrics")).text()


async def journalled(harness: Harness, count: int) -> None:
    async with asyncio.timeout(20):
        while f"tracegrad_sidecar_journal_calls {count}\n" not in await metrics(harness):  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.005)
