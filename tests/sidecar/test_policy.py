"""Which replica a call goes to, and what is tried again elsewhere."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm
from hypothesis import given
from hypothesis import strategies as st
from publishing import publish, ready, write_weights
from sidecar_harness import Harness

from sidecar.board import ASIDE, BROKEN, Board
from sidecar.dialect import Refusal
from sidecar.policy import ROOM, Policy, Replica

ROLLOUTS = [f"rollout-{number}" for number in range(200)]


def policy_of(*urls: str, board: Board | None = None) -> Policy:
    board = board or Board.memory(len(urls))
    replicas = tuple(Replica(url, board, place) for place, url in enumerate(urls))
    for replica in replicas:
        replica.found(0)
    return Policy("policy", "policy", replicas)


async def homes(policy: Policy, tried: tuple[Replica, ...] = ()) -> dict[str, str]:
    found = {}
    for rollout in ROLLOUTS:
        chosen = await policy.choose(tried, rollout)
        assert chosen is not None
        found[rollout] = chosen.url
    return found


URLS = ("http://a:1", "http://b:1", "http://c:1", "http://d:1")


async def test_a_rollout_stays_where_it_is_and_rollouts_are_spread() -> None:
    first = await homes(policy_of(*URLS))
    assert first == await homes(policy_of(*reversed(URLS))), "neither the process nor the order matters"
    counts = Counter(first.values())
    assert set(counts) == set(URLS)
    assert min(counts.values()) > len(ROLLOUTS) / len(URLS) / 2


async def test_only_the_rollouts_of_a_replica_that_is_down_move() -> None:
    policy = policy_of(*URLS)
    before = await homes(policy)
    policy.replicas[1].lost("gone")
    during = await homes(policy)
    moved = {rollout for rollout in ROLLOUTS if before[rollout] != during[rollout]}
    assert moved == {rollout for rollout in ROLLOUTS if before[rollout] == URLS[1]}
    assert len({during[rollout] for rollout in moved}) == 3, "they are spread over the others"
    policy.replicas[1].found(0)
    assert await homes(policy) == before
    policy.replicas[2].set_paused(on=True)
    closed = await homes(policy)
    assert {rollout for rollout in ROLLOUTS if before[rollout] != closed[rollout]} == {
        rollout for rollout in ROLLOUTS if before[rollout] == URLS[2]
    }


async def test_other_calls_go_to_the_least_loaded() -> None:
    board = Board.memory(3)
    policy = policy_of(*URLS[:3], board=board)
    for place, load in enumerate((3, 1, 2)):
        board.count(place, load)
    chosen = await policy.choose([])
    assert chosen is policy.replicas[1]


async def test_no_rollout_waits_behind_a_crowded_replica() -> None:
    board = Board.memory(2)
    policy = policy_of(*URLS[:2], board=board)
    before = await homes(policy)
    board.count(0, ROOM - 1)
    assert await homes(policy) == before, "a few calls are no crowd"
    board.count(0, 40)
    assert set((await homes(policy)).values()) == {URLS[1]}
    board.count(1, 40)
    assert await homes(policy) == before, "where all are as busy, everybody is at home"


@given(st.lists(st.integers(0, 500), min_size=2, max_size=6), st.text(min_size=1, max_size=20))
def test_a_named_call_never_goes_to_a_replica_with_far_more_than_its_share(loads: list[int], rollout: str) -> None:
    board = Board.memory(len(loads))
    policy = policy_of(*(f"http://e{place}:1" for place in range(len(loads))), board=board)
    for place, load in enumerate(loads):
        board.count(place, load)
    chosen = asyncio.run(policy.choose([], rollout))
    assert chosen is not None
    assert chosen.in_flight < max(ROOM, 1.25 * (sum(loads) + 1) / len(loads))


async def test_those_out_of_service_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.policy.MEND_WAIT_S", 0.05)
    policy = policy_of(*URLS[:3])
    aside, broken, down = policy.replicas
    aside.set_wanted(5)
    aside.set_aside("cannot be loaded")
    broken.begin_update()
    broken.end_update(None, touched=True)
    down.lost("gone")
    assert await policy.choose([]) is aside
    with pytest.raises(Refusal, match="http://b:1 runs unknown weights and serves nothing") as refused:
        await policy.choose([aside, down])
    assert refused.value.status == 503
    broken.begin_update()
    mended = asyncio.create_task(policy.choose([aside, down]))
    await asyncio.wait([mended], timeout=0.2)
    assert not mended.done(), "while somebody mends it, it is waited for"
    broken.end_update(5, touched=True)
    assert await mended is broken
    assert set((await homes(policy)).values()) == {broken.url}
    broken.set_paused(on=True)
    waiting = asyncio.create_task(policy.choose([]))
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done(), "one in service is waited for, rather than one that is not"
    broken.set_paused(on=False)
    assert await waiting is broken
    assert await policy.choose(policy.replicas) is None


async def test_a_call_waits_for_a_broken_replica_and_goes_where_another_comes_back() -> None:
    policy = policy_of(*URLS[:2])
    broken, paused = policy.replicas
    paused.set_paused(on=True)
    waiting = asyncio.create_task(policy.choose([]))
    broken.begin_update()
    await asyncio.sleep(0)
    broken.end_update(None, touched=True)
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    paused.set_paused(on=False)
    assert await waiting is paused


async def test_a_failure_before_the_weights_were_touched_mends_nothing() -> None:
    broken = Replica("http://engine")
    broken.found(1)
    for touched in (True, False):
        broken.begin_update()
        broken.end_update(None, touched=touched)
        assert broken.broken
        assert broken.stamp.version is None


async def test_a_dead_publisher_does_not_make_unknown_weights_serve(tmp_path: Path) -> None:
    publisher = Board.shared(tmp_path / "board", 1, workers=1)
    worker = Replica("http://engine", Board.attach(tmp_path / "board", 0, lease_s=0.0))
    worker.found(0)
    assert worker.is_open
    publisher.set_flag(0, BROKEN, on=True)
    assert not worker.is_open
    publisher.set_flag(0, ASIDE, on=True)
    assert not worker.is_open


@pytest.mark.parametrize(("version", "wanted", "stamped"), [(9, 1, None), (1, 1, 1), (0, 1, 0), (9, None, 9)])
async def test_only_versions_that_mean_something_here_are_stamped(
    version: int, wanted: int | None, stamped: int | None
) -> None:
    replica = Replica("http://engine")
    replica.found(version)
    replica.set_wanted(wanted)
    assert (replica.stamp.version, replica.version) == (stamped, version)


async def test_what_becomes_of_a_replica_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica("http://engine")
    for problem in ("no engine answers", "engine does not answer: refused", "no engine answers"):
        replica.lost(problem)
    replica.lost("has no /weight_info", mute=True)
    replica.lost("has no /weight_info", mute=True)
    assert [record.getMessage().partition("problem=")[2] for record in caplog.records] == [
        "no engine answers",
        "has no /weight_info",
    ]
    replica.found(1)
    replica.lost("no engine answers")
    assert len([record for record in caplog.records if "lost" in record.getMessage()]) == 3
    replica.set_wanted(2)
    for _ in range(2):
        replica.set_aside("not published here")
    assert len([record for record in caplog.records if "out of service" in record.getMessage()]) == 1


@pytest.fixture
async def other(another_fake: Any) -> AsyncIterator[FakeVllm]:
    async with another_fake() as state:
        yield state


@pytest.fixture
async def two(harness_for: Any, fake: FakeVllm, other: FakeVllm) -> Harness:
    harness: Harness = await harness_for({"name": "policy", "upstream": [fake.url, other.url], "policy": "policy"})
    await ready(harness)
    return harness


async def test_rollouts_are_sticky_however_they_are_named(two: Harness, fake: FakeVllm, other: FakeVllm) -> None:
    for number in range(20):
        before = len(fake.requests), len(other.requests)
        for at, headers in [
            (f"/rollout/r{number}/v1", {}),
            ("/v1", {"x_rollout_id": f"r{number}"}),
            ("/v1", {"baggage": f"rollout.id=r{number}"}),
            ("/v1", {"traceparent": f"00-{1:032x}-{number + 1:016x}-01", "x_rollout_id": f"r{number}"}),
        ]:
            assert (await two.chat({}, at=at, **headers)).status == 200
        grown = len(fake.requests) - before[0], len(other.requests) - before[1]
        assert grown in {(4, 0), (0, 4)}
    assert fake.requests
    assert other.requests


async def test_a_rollout_known_by_its_trace_alone_is_sticky_too(two: Harness, fake: FakeVllm, other: FakeVllm) -> None:
    for trace in range(1, 21):
        before = len(fake.requests), len(other.requests)
        for span in range(1, 4):
            assert (await two.chat({}, traceparent=f"00-{trace:032x}-{span:016x}-01")).status == 200
        grown = len(fake.requests) - before[0], len(other.requests) - before[1]
        assert grown in {(3, 0), (0, 3)}
    assert fake.requests
    assert other.requests


async def home_of(harness: Harness, fake: FakeVllm, name: str = "r1") -> bool:
    before = len(fake.requests)
    assert (await harness.chat({}, x_rollout_id=name)).status == 200
    return len(fake.requests) > before


async def test_a_replica_that_takes_no_connection_is_skipped_and_the_call_goes_elsewhere(
    harness_for: Any, fake: FakeVllm, another_fake: Any, free_port: Any
) -> None:
    port = free_port()
    urls = [fake.url, f"http://127.0.0.1:{port}"]
    harness = await harness_for({"name": "policy", "upstream": urls, "policy": "policy"})
    async with another_fake(port):
        await ready(harness)
        names = [name for name in ROLLOUTS[:12] if not await home_of(harness, fake, name)]
        assert names
    served = len(fake.requests)
    answers = [await harness.chat({}, x_rollout_id=name) for name in names]
    assert [answer.status for answer in answers] == [200] * len(names)
    assert len(fake.requests) == served + len(names)
    spans = await harness.receiver.wait(12 + len(names))
    here = [span for span in spans if span.attributes["server.port"] == int(fake.url.rpartition(":")[2])]
    assert len(here) == len(fake.requests), "a call is told of once, at the replica that served it"
    assert all(span.attributes["tracegrad.trainable"] for span in here)


class Closer:
    """An engine that answers the first request of a connection, then takes a request and closes without an answer."""

    def __init__(self, *, read: bool, first: bool = True) -> None:
        self._read, self._first = read, first
        self.requests = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = self._first
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            if head.startswith(b"GET /weight_info"):
                body = b'{"weight_version": "default"}'
            elif head.startswith(b"GET"):
                body = b'{"is_paused": false}'
            elif not answers:
                self.requests += 1
                break
            else:
                self.requests += 1
                answers = False
                body = b'{"choices": []}'
                if self._read:
                    length = next(one for one in head.lower().split(b"\r\n") if one.startswith(b"content-length"))
                    await reader.readexactly(int(length.split(b":")[1]))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n%s" % (len(body), body))
        writer.transport.abort()


@pytest.mark.parametrize("reused", [True, False])
async def test_once_a_byte_was_sent_a_call_is_not_tried_elsewhere(
    harness_for: Any, fake: FakeVllm, reused: bool
) -> None:
    closer = Closer(read=True, first=reused)
    server = await asyncio.start_server(closer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        harness = await harness_for({"name": "policy", "upstream": [url, fake.url], "policy": "policy"})
        await ready(harness)
        if reused:
            assert (await harness.chat({})).status == 200, "least loaded, the first of equals"
        answer = await harness.chat({})
        assert answer.status == 502
        assert (await answer.json())["error"]["code"] == "upstream_died"
        assert closer.requests == (2 if reused else 1)
        assert fake.requests == [], "the engine may have begun to sample"
        spans = await harness.receiver.wait(1 + reused)
        assert spans[-1].attributes["tracegrad.untrainable.reason"] == "error"


async def test_a_stream_that_dies_is_not_tried_elsewhere(two: Harness, fake: FakeVllm, other: FakeVllm) -> None:
    fake.die_after = other.die_after = 2
    answer = await two.chat({"stream": True})
    assert "upstream_died" in await answer.text()
    assert len(fake.requests) + len(other.requests) == 1


async def test_an_answer_of_a_replica_is_final_whatever_it_says(two: Harness, fake: FakeVllm, other: FakeVllm) -> None:
    fake.error = other.error = (503, "overloaded")
    assert (await two.chat({})).status == 503
    assert len(fake.requests) + len(other.requests) == 1


async def test_an_engine_without_a_numbered_version_can_be_published_to(harness: Harness, fake: FakeVllm) -> None:
    fake.version = "main-2026"
    assert (await harness.chat({})).status == 200
    assert (await publish(harness, write_weights(harness, 1)))[0] == 200
    await ready(harness)


async def test_unreachable_replicas_are_all_named(harness_for: Any, free_port: Any) -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    harness = await harness_for({"name": "policy", "upstream": urls, "policy": "policy"})
    message = (await (await harness.chat({}, x_rollout_id="r")).json())["error"]["message"]
    assert all(url in message for url in urls)
