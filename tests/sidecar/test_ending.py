"""How calls end that the end of the process cuts off: with an error in their API's words, and recorded as aborted."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_vllm import FakeVllm
from sidecar_process import configuration, sidecar_process, until
from stand_ins import ReceivedSpan, Receiver

from sidecar.server import serve
from tracegrad.settings import Settings

CHAT = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


@contextlib.asynccontextmanager
async def ended_early(
    tmp_path: Path, fake: FakeVllm, receiver: Receiver, *, policy: str | None = "policy", **sidecar: Any
) -> AsyncIterator[str]:
    """A sidecar that is told to end when the block does, and gives calls next to no time for it."""
    entry = {"name": "policy", "upstream": fake.url} | ({"policy": policy} if policy else {})
    places = {"port": 0, "admin_port": 0, "data": tmp_path / "data"}
    settings = Settings.model_validate({"otlp": receiver.url, "sidecar": places | sidecar, "model": [entry]})
    async with serve(settings, shutdown_s=0.2) as running:
        yield f"http://127.0.0.1:{running.port}"


def aborted(span: ReceivedSpan) -> None:
    assert span.attributes["error.type"] == "shutdown"
    assert span.attributes["tracegrad.trainable"] is False


@pytest.mark.parametrize("policy", ["policy", None])
async def test_a_stream_ends_with_an_error_event(
    tmp_path: Path, fake: FakeVllm, receiver: Receiver, policy: str | None
) -> None:
    fake.token_delay_s = 30
    async with aiohttp.ClientSession() as client:
        async with ended_early(tmp_path, fake, receiver, policy=policy) as url:
            answer = await client.post(url + PATHS["openai"], json=CHAT | {"stream": True})
        events = [line[6:] for line in (await answer.text()).splitlines() if line.startswith("data: ")]
    assert json.loads(events[-1])["error"]["code"] == "shutdown"
    span = await receiver.one()
    aborted(span)
    assert span.attributes["tracegrad.untrainable.reason"] == ("aborted" if policy else "passthrough")


@pytest.mark.parametrize("api", PATHS)
async def test_a_call_without_an_answer_gets_503_in_its_apis_shape(
    tmp_path: Path, fake: FakeVllm, receiver: Receiver, api: str
) -> None:
    fake.token_delay_s = 30
    async with aiohttp.ClientSession() as client:
        async with ended_early(tmp_path, fake, receiver) as url:
            asked = asyncio.create_task(client.post(url + PATHS[api], json=CHAT | {"max_tokens": 9}))
            await until(lambda: fake.requests)
        answer = await asked
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        error = (await answer.json())["error"]
    assert "the sidecar stops" in error["message"]
    aborted(await receiver.one())
    assert fake.aborted == 1


async def test_a_call_that_waits_for_a_place_gets_503(tmp_path: Path, fake: FakeVllm, receiver: Receiver) -> None:
    fake.token_delay_s = 30
    async with aiohttp.ClientSession() as client:
        async with ended_early(tmp_path, fake, receiver, max_concurrency=1, max_wait_s=60) as url:
            asked = [asyncio.create_task(client.post(url + PATHS["openai"], json=CHAT)) for _ in range(2)]
            await until(lambda: fake.requests)
        assert [(await one).status for one in asked] == [503, 503]
    aborted(await receiver.one())


async def test_an_answer_that_nobody_reads_does_not_hold_up_the_end(
    tmp_path: Path, fake: FakeVllm, receiver: Receiver
) -> None:
    fake.garbage = b"x" * (32 << 20)
    body = json.dumps(CHAT).encode()
    async with ended_early(tmp_path, fake, receiver) as url:
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"), limit=1)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await reader.readexactly(1)
    writer.transport.abort()
    assert (await receiver.one()).attributes["error.type"] == "invalid_answer", "what was wrong first stays"


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_second_signal_records_what_is_in_flight_and_ends_at_once(
    tmp_path: Path, fake: FakeVllm, receiver: Receiver, workers: int
) -> None:
    """The process dies of the signal, and the next one sends what it left on disk."""
    fake.token_delay_s = 30
    entry = {"name": "policy", "upstream": fake.url, "policy": "policy"}
    file = configuration(tmp_path, "http://127.0.0.1:9", entry, workers=workers, shutdown_s=60)
    async with sidecar_process(file) as running, aiohttp.ClientSession() as client:
        for number in range(3):
            answer = await client.post(
                running.url + PATHS["openai"], json=CHAT | {"stream": True}, headers={"x-rollout-id": f"r{number}"}
            )
            await answer.content.readany()
        pids = running.workers()
        running.signal(signal.SIGTERM)
        await running.told("sidecar stopping")
        running.signal(signal.SIGTERM)
        assert await running.ended() == -signal.SIGTERM
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        assert "Traceback" not in running.said.read_text()
    fake.token_delay_s = 0
    async with sidecar_process(configuration(tmp_path, receiver.url, entry)):
        spans = await receiver.wait(3)
    assert {span.attributes["tracegrad.rollout.id"] for span in spans} == {"r0", "r1", "r2"}
    for span in spans:
        aborted(span)
        assert span.json("tracegrad.prompt.token_ids") == [11, 12, 13], "what had arrived is kept"
