"""Several replicas: whatever fails, all that serve run one known version, and what comes back is brought to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_vllm import FakeVllm
from publishing import policy_of, publish, ready, write_weights
from sidecar_harness import Harness
from stand_ins import Receiver

from sidecar.server import serve
from tracegrad.settings import Settings


@pytest.fixture
async def other(another_fake: Any) -> AsyncIterator[FakeVllm]:
    async with another_fake() as state:
        yield state


@pytest.fixture
async def two(harness_for: Any, fake: FakeVllm, other: FakeVllm) -> Harness:
    """A sidecar in front of two fake vLLMs, as policy `policy`."""
    harness: Harness = await harness_for({"name": "policy", "upstream": [fake.url, other.url], "policy": "policy"})
    await ready(harness)
    return harness


@contextlib.asynccontextmanager
async def sidecar(receiver: Receiver, directory: Path, *engines: str) -> AsyncIterator[Harness]:
    """One that can be started and stopped; its record stays in `directory`."""
    weights = directory / "weights"
    weights.mkdir(exist_ok=True)
    settings = Settings.model_validate(
        {
            "otlp": receiver.url,
            "sidecar": {"port": 0, "admin_port": 0, "weights": weights, "data": directory / "data"},
            "model": [{"name": "policy", "upstream": engines, "policy": "policy"}],
        }
    )
    async with serve(settings, shutdown_s=1.0) as ports, aiohttp.ClientSession() as session:
        base = "http://127.0.0.1:"
        yield Harness(f"{base}{ports.port}", f"{base}{ports.admin_port}", session, receiver, weights)


async def until(harness: Harness, versions: list[int | None]) -> None:
    for _ in range(400):
        if [one["version"] for one in (await policy_of(harness))["replicas"]] == versions:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"not {versions}: {await policy_of(harness)}")


async def becomes(fake: FakeVllm, version: str) -> None:
    for _ in range(400):
        if fake.version == version:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"the engine stays on version {fake.version}")


def loads(fake: FakeVllm) -> list[str]:
    return [step.split("/")[-2] for step in fake.control if step.startswith("update_weights /")]


@pytest.mark.parametrize("step", ["pause", "start_weight_update", "update_weights", "reset_prefix_cache"])
async def test_when_one_fails_the_others_go_back(two: Harness, fake: FakeVllm, other: FakeVllm, step: str) -> None:
    assert (await publish(two, write_weights(two, 1)))[0] == 200
    failed = False

    async def fail_once(name: str) -> None:
        nonlocal failed
        other.fail_step = step if name == step and not failed else None
        failed = failed or name == step

    other.on_step = fail_once
    other.fail_step = "init" if step == "pause" else None
    if step == "start_weight_update":
        await _fail_twice(other)
    status, told = await publish(two, write_weights(two, 2))
    assert status == 502
    assert "The policy goes back to version 1" in told["error"]
    for engine in (fake, other):
        assert engine.version == "1"
        assert engine.running.is_set()
        assert f"{engine.url} runs version 1" in told["error"]
    assert (told["version"], told["published"]) == (1, 1)
    assert loads(fake) == ["1", "2", "1"]
    answer = await two.chat({})
    assert answer.headers["x-tracegrad-policy"] == "policy@1"
    other.on_step = None
    other.fail_step = None
    assert (await publish(two, write_weights(two, 2)))[0] == 200
    assert (fake.version, other.version) == ("2", "2")


async def _fail_twice(engine: FakeVllm) -> None:
    """The step is tried again after an open update was closed: it must fail both times."""
    seen = 0

    async def step(name: str) -> None:
        nonlocal seen
        seen += name == "start_weight_update"
        engine.fail_step = "start_weight_update" if name == "start_weight_update" and seen <= 2 else None

    engine.on_step = step


async def test_one_that_cannot_go_back_is_out_of_service_until_it_can(
    two: Harness, fake: FakeVllm, other: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.catch_up.FIRST_RETRY_S", 0.1)
    assert (await publish(two, write_weights(two, 1)))[0] == 200
    other.fail_step = "update_weights"
    status, told = await publish(two, write_weights(two, 2))
    assert status == 502
    assert f"{fake.url} runs version 1" in told["error"]
    assert f"{other.url} runs unknown weights and serves nothing, since a weight update failed" in told["error"]
    assert [one["version"] for one in told["replicas"]] == [1, None]
    assert told["version"] == 1
    before = len(other.requests)
    for number in range(8):
        assert (await two.chat({}, x_rollout_id=f"r{number}")).headers["x-tracegrad-policy"] == "policy@1"
    assert len(other.requests) == before
    other.fail_step = None
    await until(two, [1, 1])
    await ready(two)
    assert (await policy_of(two))["replicas"][1]["problem"] == ""


async def test_without_a_file_to_go_back_to_the_publication_goes_forward(
    harness_for: Any, fake: FakeVllm, other: FakeVllm, another_fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.catch_up.FIRST_RETRY_S", 0.1)
    async with another_fake() as third:
        engines = [fake.url, other.url, third.url]
        harness = await harness_for({"name": "policy", "upstream": engines, "policy": "policy"})
        await ready(harness)
        other.fail_step = "finish_weight_update"
        status, told = await publish(harness, write_weights(harness, 1))
        assert status == 502
        assert "Version 1 stays where it was loaded" in told["error"]
        assert "no file to go back to" in told["error"]
        assert [one["version"] for one in told["replicas"]] == [1, None, 1]
        assert (told["version"], told["published"]) == (1, 1)
        other.fail_step = None
        await until(harness, [1, 1, 1])


async def test_a_first_publication_that_fails_at_once_changes_no_other(
    two: Harness, fake: FakeVllm, other: FakeVllm
) -> None:
    fake.fail_step = "update_weights"
    status, told = await publish(two, write_weights(two, 1))
    assert status == 502
    assert "No replica runs version 1" in told["error"]
    assert [one["version"] for one in told["replicas"]] == [None, 0]
    assert (told["version"], told["published"]) == (0, None)
    assert other.control == []
    for _ in range(3):
        assert (await two.chat({})).headers["x-tracegrad-policy"] == "policy@0"
    assert fake.requests == []
    fake.fail_step = None
    again = write_weights(two, 1, b"better weights")
    assert (await publish(two, again))[0] == 200, "no engine ran it, so that the name is still free"


@pytest.mark.parametrize("damage", ["gone", "changed"])
async def test_a_file_that_has_changed_is_not_gone_back_to(
    two: Harness, fake: FakeVllm, other: FakeVllm, damage: str
) -> None:
    assert (await publish(two, write_weights(two, 1)))[0] == 200
    file = two.weights / "policy" / "1" / "model.safetensors"
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"other weights")
    other.fail_step = "update_weights"
    status, told = await publish(two, write_weights(two, 2))
    assert status == 502
    assert "Version 2 stays where it was loaded, since version 1 cannot be loaded again" in told["error"]
    assert (fake.version, told["version"], told["published"]) == ("2", 2, 2)
    assert loads(fake) == ["1", "2"]


async def test_a_replica_that_is_down_is_brought_up_to_date_when_it_comes_back(
    harness_for: Any, fake: FakeVllm, another_fake: Any, free_port: Any
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    harness = await harness_for({"name": "policy", "upstream": [fake.url, url], "policy": "policy"})
    status, told = await publish(harness, write_weights(harness, 1))
    assert status == 200
    assert [(one["version"], one["healthy"]) for one in told["replicas"]] == [(1, True), (None, False)]
    assert told["version"] == 1
    for number in range(4):
        assert (await harness.chat({}, x_rollout_id=f"r{number}")).status == 200
    async with another_fake(port) as back:
        await until(harness, [1, 1])
        assert back.version == "1"
        assert back.requests == [], "it serves only then"
        assert back.control[0] == "init_weight_transfer_engine"
        for number in range(8):
            answer = await harness.chat({}, x_rollout_id=f"r{number}")
            assert answer.headers["x-tracegrad-policy"] == "policy@1"
        assert back.requests


async def test_nothing_is_changed_while_all_are_down(harness_for: Any, free_port: Any) -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    harness = await harness_for({"name": "policy", "upstream": urls, "policy": "policy"})
    status, told = await publish(harness, write_weights(harness, 1))
    assert status == 502
    assert told["error"].startswith("nothing was changed: no engine answers")
    assert told["published"] is None


async def test_a_restarted_engine_serves_nothing_before_it_is_brought_up_to_date(
    harness_for: Any, another_fake: Any, free_port: Any
) -> None:
    port = free_port()
    harness = await harness_for({"name": "*", "upstream": f"http://127.0.0.1:{port}", "policy": "policy"})
    async with another_fake(port):
        await ready(harness)
        assert (await publish(harness, write_weights(harness, 7)))[0] == 200
        assert (await harness.chat({})).headers["x-tracegrad-policy"] == "policy@7"
    async with another_fake(port) as restarted:
        seen = []

        async def note(step: str) -> None:
            seen.append((step, len(restarted.requests)))

        restarted.on_step = note
        await becomes(restarted, "7")
        answer = await harness.chat({})
        assert answer.headers["x-tracegrad-policy"] == "policy@7"
        assert {served for _, served in seen} == {0}
        spans = {span.span_id: span.attributes for span in await harness.receiver.wait(2)}
        assert spans[answer.headers["x-tracegrad-span-id"]]["tracegrad.policy.version"] == 7


async def test_an_engine_that_restarts_unseen_is_noticed(two: Harness, fake: FakeVllm) -> None:
    assert (await publish(two, write_weights(two, 3)))[0] == 200
    fake.version = "default"
    await becomes(fake, "3")
    assert fake.control[7] == "init_weight_transfer_engine", "a new engine needs it again"
    await until(two, [3, 3])


async def test_a_restarted_sidecar_knows_what_was_published(
    receiver: Receiver, tmp_path: Path, fake: FakeVllm, other: FakeVllm
) -> None:
    async with sidecar(receiver, tmp_path, fake.url, other.url) as first:
        for version in (1, 2):
            assert (await publish(first, write_weights(first, version, str(version).encode())))[0] == 200
    steps = len(fake.control)
    async with sidecar(receiver, tmp_path, fake.url, other.url) as second:
        await ready(second)
        assert (await policy_of(second))["published"] == 2
        assert (await publish(second, write_weights(second, 2, b"2")))[0] == 200
        assert len(fake.control) == steps, "nothing is loaded twice"
        status, told = await publish(second, write_weights(second, 1, b"changed"))
        assert (status, "use a new version" in told["error"]) == (409, True)
    other.version = "1"
    async with sidecar(receiver, tmp_path, fake.url, other.url) as third:
        await until(third, [2, 2])
        assert (other.version, loads(other)) == ("2", ["1", "2", "2"])
        assert len(fake.control) == steps
    mode = (tmp_path / "data" / "publications.sqlite").stat().st_mode
    assert mode & 0o077 == 0


async def test_a_version_that_others_published_is_left_alone_and_said(two: Harness, fake: FakeVllm) -> None:
    assert (await publish(two, write_weights(two, 1)))[0] == 200
    steps = len(fake.control)
    fake.version = "9"
    await until(two, [9, 1])
    for _ in range(200):
        told = (await policy_of(two))["replicas"][0]
        if "not published here" in told["problem"]:
            break
        await asyncio.sleep(0.02)
    last = f"engine at {fake.url} runs version 9 instead of 1, so it serves only as a last resort"
    assert told["problem"].startswith(f"{last}, and its calls train nothing: version 9 was not published here")
    assert (told["healthy"], told["standing"]) == (False, "last_resort")
    assert len(fake.control) == steps
    for number in range(6):
        answer = await two.chat({}, x_rollout_id=f"r{number}")
        assert answer.headers["x-tracegrad-policy"] == "policy@1"
    ready_now = await two.session.get(f"{two.admin}/readyz")
    assert ready_now.status == 200
    assert "not published here" in (await ready_now.json())["problems"][0]
    assert (await publish(two, write_weights(two, 10)))[0] == 200
    await until(two, [10, 10])


async def test_a_version_that_others_published_serves_where_no_other_can_and_trains_nothing(
    harness: Harness, fake: FakeVllm
) -> None:
    assert (await publish(harness, write_weights(harness, 1)))[0] == 200
    fake.version = "99"
    for _ in range(400):
        told = (await policy_of(harness))["replicas"][0]
        if told["standing"] == "last_resort":
            break
        await asyncio.sleep(0.02)
    assert (told["standing"], told["version"], told["healthy"]) == ("last_resort", 99, False)
    assert "serves only as a last resort, and its calls train nothing" in told["problem"]
    answer = await harness.chat({})
    assert answer.status == 200
    assert "x-tracegrad-policy" not in answer.headers
    attributes = (await harness.receiver.one()).attributes
    assert attributes["tracegrad.untrainable.reason"] == "mixed_versions"
    assert "tracegrad.policy.version" not in attributes
    page = await (await harness.session.get(f"{harness.admin}/metrics")).text()
    labels = f'policy="policy",replica="{fake.url}"'
    assert f"replica_up{{{labels}}} 0" in page
    assert f'replica_standing{{{labels},standing="last_resort"}} 1' in page
    assert f"policy_version{{{labels}}} 99" in page
    told_ready = await harness.session.get(f"{harness.admin}/readyz")
    assert (told_ready.status, (await told_ready.json())["problems"]) == (200, [told["problem"]])
    assert (await harness.session.post(f"{harness.admin}/policies/policy/forget")).status == 200
    answer = await harness.chat({})
    assert answer.headers["x-tracegrad-policy"] == "policy@99", "where nothing was published, the engine's word counts"


async def test_calls_wait_for_an_engine_with_unknown_weights_until_it_is_mended(
    harness: Harness, fake: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.catch_up.FIRST_RETRY_S", 0.2)
    assert (await publish(harness, write_weights(harness, 1)))[0] == 200
    fake.fail_step = "finish_weight_update"
    status, told = await publish(harness, write_weights(harness, 2))
    assert status == 502
    failure = f"engine at {fake.url} refused /finish_weight_update (status 500): Internal Server Error"
    assert told["error"] == (
        f"{failure}. The policy goes back to version 1. engine at {fake.url} runs unknown weights and serves nothing, "
        f"since a weight update failed half-way ({failure}): publish again, or restart it."
    )
    assert (await harness.session.get(f"{harness.admin}/readyz")).status == 503
    call = asyncio.create_task(harness.chat({}))
    await asyncio.wait([call], timeout=0.1)
    assert not call.done()
    assert fake.requests == []
    fake.fail_step = None
    assert (await call).headers["x-tracegrad-policy"] == "policy@1"
    assert (await harness.receiver.one()).attributes["tracegrad.trainable"] is True


async def test_a_call_that_ends_just_before_a_swap_is_proved(harness: Harness, fake: FakeVllm) -> None:
    await ready(harness)
    answers = []

    async def call_before(step: str) -> None:
        if step == "init_weight_transfer_engine":
            answers.extend([await harness.chat({}), await harness.chat({})])

    fake.on_step = call_before
    assert (await publish(harness, write_weights(harness, 1)))[0] == 200
    assert [answer.headers["x-tracegrad-policy"] for answer in answers] == ["policy@0"] * 2
    spans = await harness.receiver.wait(2)
    assert [span.attributes["tracegrad.trainable"] for span in spans] == [True] * 2


async def test_an_engine_that_does_not_say_its_version_holds_no_publication_up(
    harness: Harness, fake: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.replica.SETTLE_LIMIT_S", 0.1)
    await ready(harness)

    async def fall_silent(step: str) -> None:
        (fake.telling.clear if step == "init_weight_transfer_engine" else fake.telling.set)()

    fake.on_step = fall_silent
    assert (await publish(harness, write_weights(harness, 1)))[0] == 200


async def test_an_operator_may_go_back_to_an_older_version(two: Harness, fake: FakeVllm) -> None:
    for version in (1, 2):
        assert (await publish(two, write_weights(two, version)))[0] == 200
    status, told = await publish(two, write_weights(two, 1))
    assert (status, told["version"], told["published"], told["rolled_back_from"]) == (200, 1, 1, 2)
    assert loads(fake) == ["1", "2", "1"]
    fake.version = "default"
    await until(two, [1, 1])


async def test_what_was_published_can_be_forgotten(two: Harness, fake: FakeVllm) -> None:
    assert (await publish(two, write_weights(two, 1)))[0] == 200
    forgotten = await two.session.post(f"{two.admin}/policies/policy/forget")
    assert forgotten.status == 200
    assert (await forgotten.json())["published"] is None
    steps = len(fake.control)
    fake.version = "default"
    await until(two, [0, 1])
    assert len(fake.control) == steps
    assert (await publish(two, write_weights(two, 1, b"other weights")))[0] == 200
    assert (await two.session.post(f"{two.admin}/policies/nobody/forget")).status == 404


async def test_an_engine_left_in_the_middle_of_an_update_is_loaded_anew(
    receiver: Receiver, tmp_path: Path, fake: FakeVllm
) -> None:
    async with sidecar(receiver, tmp_path, fake.url) as first:
        assert (await publish(first, write_weights(first, 1)))[0] == 200
    fake.running.clear()  # as a publisher leaves it that dies between pause and resume
    fake.updating = True
    async with sidecar(receiver, tmp_path, fake.url) as second:
        answer = await second.chat({})
        assert answer.headers["x-tracegrad-policy"] == "policy@1"
        assert loads(fake) == ["1", "1"]
    assert (await receiver.one()).attributes["tracegrad.trainable"] is True


async def test_a_record_that_cannot_be_kept_stops_a_publication_before_it_begins(two: Harness, fake: FakeVllm) -> None:
    record = two.weights.parent / "data" / "publications.sqlite"
    record.unlink()
    record.mkdir()
    status, told = await publish(two, write_weights(two, 1))
    assert status == 503
    assert "publications.sqlite cannot be read or written" in told["error"]
    assert fake.control == []


async def test_calls_never_fail_while_replicas_are_updated_and_rolled_back(
    two: Harness, fake: FakeVllm, other: FakeVllm
) -> None:
    assert (await publish(two, write_weights(two, 1)))[0] == 200
    fake.token_delay_s = other.token_delay_s = 0.02
    stop = asyncio.Event()
    statuses: list[int] = []

    async def agent(number: int) -> None:
        while not stop.is_set():
            answer = await two.chat({"stream": bool(number % 2)}, x_rollout_id=f"r{number}")
            statuses.append(answer.status)
            assert b"error" not in await answer.read()

    agents = [asyncio.create_task(agent(number)) for number in range(6)]
    await asyncio.sleep(0.1)
    assert (await publish(two, write_weights(two, 2)))[0] == 200
    other.fail_step = "finish_weight_update"
    assert (await publish(two, write_weights(two, 3)))[0] == 502
    other.fail_step = None
    await until(two, [2, 2])
    stop.set()
    await asyncio.gather(*agents)
    assert set(statuses) == {200}
    spans = await two.receiver.wait(len(statuses))
    for span in spans:
        known = span.attributes.get("tracegrad.policy.version")
        assert (known is None) == (span.attributes.get("tracegrad.untrainable.reason") == "mixed_versions")


async def test_a_call_that_outlives_a_swap_and_its_rollback_is_mixed(
    two: Harness, fake: FakeVllm, other: FakeVllm
) -> None:
    assert (await publish(two, write_weights(two, 1)))[0] == 200
    fake.token_delay_s = other.token_delay_s = 0.2
    calls = [asyncio.create_task(two.chat({})) for _ in range(2)]
    while not (fake.requests and other.requests):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    other.fail_step = "finish_weight_update"
    assert (await publish(two, write_weights(two, 2)))[0] == 502
    assert fake.version == "1"
    answers = await asyncio.gather(*calls)
    assert [answer.headers["x-tracegrad-policy"] for answer in answers] == ["policy@1"] * 2
    for span in await two.receiver.wait(2):
        assert span.attributes["tracegrad.untrainable.reason"] == "mixed_versions"
