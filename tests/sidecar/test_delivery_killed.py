"""A sidecar process that is killed loses no call that it recorded, whether there is a collector or not."""

import asyncio
import contextlib
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_vllm import FakeVllm
from stand_ins import Receiver, otlp_receiver

from sidecar.delivery import BATCH_BYTES, WINDOW_BYTES

COMMAND = (sys.executable, "-c", "from tracegrad.cli import main; main()", "sidecar")
CALLERS = 8
READY = re.compile(r"sidecar ready port=(\d+) admin_port=(\d+)\n")


@dataclass
class Sidecar:
    """A process, and its clients."""

    process: asyncio.subprocess.Process
    url: str
    admin: str
    log: Path
    client: aiohttp.ClientSession

    async def call(self) -> str:
        """Ask for an answer: its span's id."""
        body = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
        async with self.client.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            await answer.read()
            assert answer.status == 200
            return answer.headers["x-tracegrad-span-id"]

    async def metric(self, name: str) -> int:
        async with self.client.get(f"{self.admin}/metrics") as answer:
            page = await answer.text()
        found = re.search(rf"^tracegrad_sidecar_{re.escape(name)} (\d+)", page, re.MULTILINE)
        assert found is not None, page
        return int(found[1])

    async def queued(self) -> int:
        return await self.metric('spans_total{state="queued"}')

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def sidecar(directory: Path, fake: FakeVllm, collector: str) -> AsyncIterator[Sidecar]:
    config, log = directory / "tracegrad.toml", directory / "log"
    config.write_text(
        f'otlp = "{collector}"\n[sidecar]\nport = 0\nadmin_port = 0\ndata = "{directory / "data"}"\n'
        f'[[model]]\nname = "policy"\nupstream = "{fake.url}"\npolicy = "policy"\n'
    )
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*COMMAND, "--config", str(config), stderr=output)
    try:
        async with asyncio.timeout(30), aiohttp.ClientSession() as client:
            while (ready := READY.search(log.read_text())) is None:
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.02)
        async with aiohttp.ClientSession() as client:
            host = "http://127.0.0.1:"
            yield Sidecar(process, f"{host}{ready[1]}", f"{host}{ready[2]}", log, client)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def arrived(receiver: Receiver, at_least: int) -> Counter[str]:
    """How often each span came, once so many have."""
    async with asyncio.timeout(30):
        while len({one.span_id for one in receiver.spans}) < at_least:  # noqa: ASYNC110 - it runs in a thread
            await asyncio.sleep(0.02)
    return Counter(one.span_id for one in receiver.spans)


async def test_killed_without_a_collector_it_sends_everything_once_after_the_next_start(
    tmp_path: Path, fake: FakeVllm, free_port: Any
) -> None:
    port = free_port()
    collector = f"http://127.0.0.1:{port}"
    called: list[str] = []
    for _ in range(2):
        async with sidecar(tmp_path, fake, collector) as one:
            ids = await asyncio.gather(*(one.call() for _ in range(40)))
            async with asyncio.timeout(10):
                while await one.queued() < len(ids):  # noqa: ASYNC110 - asked over HTTP
                    await asyncio.sleep(0.01)
            called += ids
            await one.kill()
    with otlp_receiver(port) as receiver:
        async with sidecar(tmp_path, fake, collector) as one:
            found = await arrived(receiver, len(called))
            assert await one.metric('spans_total{state="adopted"}') == len(called)
            assert await one.metric("spool_torn_total") == 0
            assert await one.metric("spool_waiting_bytes") == 0
        assert found == Counter(called)
    assert list((tmp_path / "data" / "spool").glob("*/*.segment")) == []


@pytest.mark.parametrize("round_", range(2))
async def test_killed_under_load_it_loses_no_recorded_call(
    tmp_path: Path, fake: FakeVllm, receiver: Receiver, round_: int
) -> None:
    fake.token_delay_s = 0.004  # so that a call is on disk when its client has the next answer
    called: list[list[str]] = [[] for _ in range(CALLERS)]
    recorded = 0

    async def keep_calling(one: Sidecar, answered: list[str]) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            while True:
                answered.append(await one.call())

    async with sidecar(tmp_path, fake, receiver.url) as one:
        callers = [asyncio.create_task(keep_calling(one, answered)) for answered in called]
        while recorded < 300 + 150 * round_:
            recorded = await one.queued()
            await asyncio.sleep(0.005)
        await one.kill()
        await asyncio.gather(*callers)
    async with sidecar(tmp_path, fake, receiver.url) as one:
        await arrived(receiver, recorded)
        async with asyncio.timeout(20):
            while await one.metric("spool_waiting_bytes"):  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.02)
        assert await one.metric("spool_torn_total") <= 1, "at most the one it was writing"
    found = Counter(one.span_id for one in receiver.spans)
    twice = sum(count - 1 for count in found.values())
    size = 2000  # of such a span, at least; a batch more may be on its way when the window is full
    assert max(found.values()) <= 2
    assert twice <= (WINDOW_BYTES + BATCH_BYTES) / size
    missing = {one for answered in called for one in answered} - set(found)
    assert missing <= {answered[-1] for answered in called}, "answered in the last moment"
