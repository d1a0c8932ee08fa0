"""Prompt overrides in a sidecar of several workers: one definition, and rollouts that stay whoever serves them."""

import asyncio
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import aiohttp
from fake_vllm import FakeVllm
from stand_ins import Receiver

ROLLOUTS = [f"r{number}" for number in range(24)]


async def test_every_worker_gives_a_rollout_the_same_variant(
    tmp_path: Path, fake: FakeVllm, receiver: Receiver
) -> None:
    config = tmp_path / "tracegrad.toml"
    config.write_text(
        f'otlp = "{receiver.url}"\n[sidecar]\nport = 0\nadmin_port = 0\nworkers = 2\ndata = "{tmp_path / "data"}"\n'
        f'[[model]]\nname = "policy"\nupstream = "{fake.url}"\npolicy = "policy"\n'
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tracegrad", "sidecar", "--config", str(config)), stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        told = await asyncio.wait_for(process.stderr.readuntil(b"sidecar ready "), 60)
        ports = re.match(rb"port=(\d+) admin_port=(\d+)", await process.stderr.readline())
        assert ports is not None, told
        port, admin = (f"http://127.0.0.1:{int(one)}" for one in ports.groups())
        # A connection per call, which the kernel gives to either worker.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client:

            async def put(*texts: str, weight: float = 1.0) -> None:
                variants = [{"version": number, "text": one, "weight": 1.0} for number, one in enumerate(texts, 1)]
                variants[-1]["weight"] = weight
                async with client.put(f"{admin}/prompts/any", json={"variants": variants}) as answer:
                    assert answer.status == 200, await answer.text()

            async def ask(rollout: str) -> None:
                body = {"model": "policy", "messages": [{"role": "user", "content": rollout}]}
                async with client.post(f"{port}/rollout/{rollout}/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()

            await put("one", "two")
            await asyncio.gather(*(ask(rollout) for rollout in ROLLOUTS))
            await put("one", "two", "three", weight=1e9)
            for _ in range(3):
                await asyncio.gather(*(ask(rollout) for rollout in ROLLOUTS))
            await asyncio.gather(*(ask(f"late-{rollout}") for rollout in ROLLOUTS))
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    texts = defaultdict(set)
    for request in fake.requests:
        system, user = request["messages"]
        texts[user["content"]].add(system["content"])
    assert {len(texts[rollout]) for rollout in ROLLOUTS} == {1}
    assert set.union(*(texts[rollout] for rollout in ROLLOUTS)) == {"one", "two"}
    assert set.union(*(texts[f"late-{rollout}"] for rollout in ROLLOUTS)) == {"three"}
    stamped = {span.attributes["tracegrad.prompt.name"] for span in await receiver.wait_at_least(5 * len(ROLLOUTS))}
    assert stamped == {"any"}
