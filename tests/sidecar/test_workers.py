"""Several worker processes on one port: real processes, under load, killed, reloaded, stopped."""

import asyncio
import contextlib
import hashlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from fake_vllm import FakeVllm
from sidecar_process import SidecarProcess, alive, configuration, sidecar_process, until
from stand_ins import Receiver
from weight_bytes import safetensors

CHAT = {"model": "policy", "messages": []}


@dataclass
class Load:
    """Calls one after another from several clients, each call on a connection of its own."""

    url: str
    headers: dict[str, str]
    stopped: bool = False
    statuses: Counter[str] = field(default_factory=Counter)

    async def client(self) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            while not self.stopped:
                try:
                    async with session.post(
                        f"{self.url}/v1/chat/completions", json=CHAT, headers=self.headers
                    ) as answer:
                        await answer.read()
                        self.statuses[str(answer.status)] += 1
                except aiohttp.ClientError as error:
                    self.statuses[type(error).__name__] += 1

    async def calls(self, count: int) -> None:
        """Wait for so many more calls."""
        wanted = self.statuses.total() + count
        await until(lambda: self.statuses.total() >= wanted)


@contextlib.asynccontextmanager
async def load(url: str, clients: int = 6, rollout: str = "r") -> AsyncIterator[Load]:
    running = Load(url, headers={"x-rollout-id": rollout})
    tasks = [asyncio.create_task(running.client()) for _ in range(clients)]
    try:
        yield running
    finally:
        running.stopped = True
        await asyncio.gather(*tasks)


@pytest.fixture
async def started(tmp_path: Path, fake: FakeVllm, receiver: Receiver) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """A function that starts a sidecar with two workers."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**sidecar: Any) -> SidecarProcess:
            file = configure(tmp_path, fake, receiver, **sidecar)
            return await stack.enter_async_context(sidecar_process(file, "--workers", "2"))

        yield start


def configure(directory: Path, fake: FakeVllm, receiver: Receiver, **sidecar: Any) -> Path:
    model = {"name": "policy", "policy": "policy", "upstream": fake.url, "api_key": "sk-secret"}
    return configuration(directory, receiver.url, model, access_log=str(directory / "access.log"), **sidecar)


def logged(directory: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (directory / "access.log").read_bytes().splitlines()]


def shown_by_the_system(pid: int) -> bytes:
    return b"".join(Path(f"/proc/{pid}/{file}").read_bytes() for file in ("cmdline", "environ"))


async def counted(running: SidecarProcess, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{running.admin}/metrics") as answer:
        page = await answer.text()
    found = [line for line in page.splitlines() if line.startswith(f"tracegrad_sidecar_{name} ")]
    return float(found[0].split()[1]) if found else 0.0


async def test_both_serve_are_counted_together_and_end_together(
    started: Any, tmp_path: Path, receiver: Receiver
) -> None:
    running = await started()
    async with load(running.url) as clients:
        await clients.calls(60)
    total = clients.statuses.total()
    assert clients.statuses == {"200": total}
    assert await counted(running, 'calls_total{status="200"}') == total
    assert await counted(running, "request_seconds_count") == total
    assert await counted(running, "workers") == 2
    pids = running.workers()
    assert len(pids) == 2
    for pid in (running.process.pid, *pids):
        assert b"sk-secret" not in shown_by_the_system(pid)
    async with aiohttp.ClientSession() as session:
        await (await session.get(f"{running.url}/v1/models")).read()
        running.signal(signal.SIGTERM)  # with an idle connection, which delays nothing
        assert await asyncio.wait_for(running.ended(), 10) == 0
    assert not alive(pids)
    entries = [entry for entry in logged(tmp_path) if entry["method"] == "POST"]
    assert (len(entries), {entry["worker"] for entry in entries}) == (total, {0, 1})
    assert len(receiver.spans) == total
    assert all(span.attributes["tracegrad.trainable"] for span in receiver.spans)
    assert "sk-secret" not in running.said.read_text()


async def test_a_killed_worker_costs_its_calls_in_flight_and_is_replaced(
    started: Any, fake: FakeVllm, receiver: Receiver
) -> None:
    fake.token_delay_s = 0.004  # so that a call is on disk when its client has the next answer
    running = await started()
    async with load(running.url, rollout="before") as before:
        await before.calls(30)
    async with load(running.url, clients=4, rollout="meanwhile") as meanwhile:
        await meanwhile.calls(20)
        counted_before = await counted(running, "request_seconds_count")
        victim = running.workers()[0]
        os.kill(victim, signal.SIGKILL)
        await running.told("worker ended number=")
        assert await counted(running, "request_seconds_count") >= counted_before, "a sum never goes backwards"
        await both_serve(running)
        await meanwhile.calls(20)
    # One in flight for each client, and what they send again before the kernel has closed the dead one's listener.
    failed = meanwhile.statuses.total() - meanwhile.statuses["200"]
    assert failed <= 3 * 4, meanwhile.statuses
    async with load(running.url, rollout="after") as after:
        await after.calls(30)
    assert await counted(running, "worker_restarts_total") == 1
    assert victim not in running.workers()
    running.signal(signal.SIGTERM)
    assert await running.ended() == 0
    # What the dead had written down is sent by the living. A client's last answer may have come in the last moment.
    rollouts = Counter({span.span_id: span.attributes["tracegrad.rollout.id"] for span in receiver.spans}.values())
    assert (rollouts["before"], rollouts["after"]) == (before.statuses["200"], after.statuses["200"])
    assert rollouts["meanwhile"] >= meanwhile.statuses["200"] - 4


async def both_serve(running: SidecarProcess) -> None:
    async with asyncio.timeout(20):
        while await counted(running, "workers") < 2:  # noqa: ASYNC110 - another process starts
            await asyncio.sleep(0.05)


async def test_a_reload_under_load_fails_no_call(
    started: Any, tmp_path: Path, fake: FakeVllm, receiver: Receiver, another_fake: Any
) -> None:
    running = await started()
    async with another_fake() as second, load(running.url) as clients:
        await clients.calls(20)
        (tmp_path / "access.log").rename(tmp_path / "access.log.1")
        configure(tmp_path, second, receiver)
        running.signal(signal.SIGHUP)
        await running.told("configuration reloaded")
        asked_before = len(fake.requests)
        await clients.calls(40)
        assert len(fake.requests) <= asked_before + 6, "only what was on its way"
        assert len(second.requests) >= 30

        (tmp_path / "tracegrad.toml").write_text("[sidecar]\nnonsense = 1\n")
        running.signal(signal.SIGHUP)
        said = await running.told("configuration not reloaded, the old one stays")
        assert "unknown setting nonsense in [sidecar]" in said
        await clients.calls(20)

        configure(tmp_path, second, receiver, max_body_bytes=10, workers=3)
        async with aiohttp.ClientSession() as session:
            answer = await session.post(f"{running.admin}/reload")
            assert answer.status == 200
            # The command line said how many workers; so nothing waits for a restart.
            assert await answer.json() == {"status": "reloaded", "restart_for": []}
            for _ in range(4):
                refused = await session.post(f"{running.url}/v1/chat/completions", json=CHAT)
                assert refused.status == 413
        configure(tmp_path, second, receiver)
        running.signal(signal.SIGHUP)
        await running.told("configuration reloaded", 3)
    assert set(clients.statuses) <= {"200", "413"}
    running.signal(signal.SIGTERM)
    assert await running.ended() == 0
    total = clients.statuses.total() + 4
    assert (tmp_path / "access.log.1").read_bytes().count(b"\n") + len(logged(tmp_path)) == total


async def test_a_stop_under_load_finishes_every_stream(started: Any, fake: FakeVllm, receiver: Receiver) -> None:
    fake.token_delay_s = 0.2
    running = await started()

    async def stream() -> bytes:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{running.url}/v1/chat/completions", json=CHAT | {"stream": True}) as answer,
        ):
            return await answer.read()

    streams = [asyncio.create_task(stream()) for _ in range(12)]
    await until(lambda: fake.at_once == 12)
    running.signal(signal.SIGTERM)
    contents = await asyncio.gather(*streams)
    assert all(content.endswith(b"data: [DONE]\n\n") for content in contents)
    assert await running.ended() == 0
    assert [span.attributes["tracegrad.trainable"] for span in receiver.spans] == [True] * 12


async def test_a_publication_under_load_fails_no_call_and_stamps_right(
    started: Any, tmp_path: Path, fake: FakeVllm, receiver: Receiver
) -> None:
    fake.token_delay_s = 0.005
    running = await started()
    weights = tmp_path / "weights"
    weights.mkdir()
    content = safetensors()
    (weights / "model.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    async with load(running.url) as clients, aiohttp.ClientSession() as session:
        for version in (1, 2, 3):
            await clients.calls(20)
            publication = {"version": version, "weights": str(weights), "sha256": digest}
            answer = await session.post(f"{running.admin}/policies/policy/publish", json=publication)
            assert answer.status == 200, await answer.text()
        await clients.calls(20)
    assert set(clients.statuses) == {"200"}
    running.signal(signal.SIGTERM)
    assert await running.ended() == 0
    assert len(receiver.spans) == clients.statuses.total()
    stamped = [span for span in receiver.spans if span.attributes["tracegrad.trainable"]]
    assert {span.attributes["tracegrad.policy.version"] for span in stamped} == {0, 1, 2, 3}
    for span in receiver.spans:
        if not span.attributes["tracegrad.trainable"]:
            assert span.attributes["tracegrad.untrainable.reason"] == "mixed_versions"
    assert len(stamped) > len(receiver.spans) / 2


async def test_workers_end_with_the_main_process(started: Any) -> None:
    running = await started()
    pids = running.workers()
    running.signal(signal.SIGKILL)
    await running.ended()
    await until(lambda: not alive(pids))
    assert running.said.read_text().count("main process gone: this one ends too") == 2


async def test_a_second_signal_ends_workers_at_once(started: Any, fake: FakeVllm) -> None:
    fake.token_delay_s = 30
    running = await started()
    pids = running.workers()
    async with aiohttp.ClientSession() as session:
        await session.post(f"{running.url}/v1/chat/completions", json=CHAT | {"stream": True})
        running.signal(signal.SIGTERM)
        await running.told("sidecar stopping")
        running.signal(signal.SIGTERM)
        assert await running.ended() == -signal.SIGTERM
    await until(lambda: not alive(pids), 5)


async def test_a_worker_that_cannot_start_is_one_line(tmp_path: Path, fake: FakeVllm, receiver: Receiver) -> None:
    config = configure(tmp_path, fake, receiver)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prompts.json").write_text("not json")
    with pytest.raises(AssertionError, match="tracegrad: ") as caught:
        async with sidecar_process(config, "--workers", "2"):
            pass
    assert "Traceback" not in str(caught.value)
