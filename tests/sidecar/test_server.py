"""The process: ports, signals, an orderly end. And the parts that every start depends on."""

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_vllm import FakeVllm
from sidecar_process import configuration, sidecar_process
from stand_ins import Receiver

from sidecar.listen import claim, port_of, share
from sidecar.routes import build_routes
from sidecar.server import serve
from tracegrad.errors import PortInUseError, SettingsError, TracegradError
from tracegrad.settings import Settings

COMMAND = (sys.executable, "-c", "from tracegrad.cli import main; main()", "sidecar")
CHAT = {"model": "policy", "messages": []}


def configure(directory: Path, fake: FakeVllm, receiver: Receiver, port: int = 0) -> Path:
    model = {"name": "policy", "upstream": fake.url, "policy": "policy", "api_key": "sk-secret"}
    return configuration(directory, receiver.url, model, port=port)


@contextlib.asynccontextmanager
async def running(config: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str]]:
    """A sidecar process, its URL, and what it wrote until it was ready."""
    process = await asyncio.create_subprocess_exec(*COMMAND, "--config", str(config), stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        line = await asyncio.wait_for(process.stderr.readuntil(b"sidecar ready "), 30)
        ports = (await process.stderr.readline()).decode()
        match = re.fullmatch(r"port=(\d+) admin_port=(\d+)\n", ports)
        assert match is not None, ports
        yield process, f"http://127.0.0.1:{match[1]}", line.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stopped_sidecar_finishes_its_calls_and_sends_its_spans(
    tmp_path: Path, fake: FakeVllm, receiver: Receiver, number: signal.Signals
) -> None:
    fake.token_delay_s = 0.1
    async with running(configure(tmp_path, fake, receiver)) as (process, url, _), aiohttp.ClientSession() as client:
        answer = await client.post(f"{url}/v1/chat/completions", json=CHAT | {"stream": True})
        await answer.content.readany()
        process.send_signal(number)
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert process.stderr is not None
        said = await process.stderr.read()
        assert b"sk-secret" not in said
    assert [span.attributes["tracegrad.trainable"] for span in receiver.spans] == [True]


def test_a_port_in_use_is_one_line_and_exit_1(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        config = configure(tmp_path, FakeVllm("http://127.0.0.1:1"), Receiver("http://127.0.0.1:1"), port)
        done = subprocess.run((*COMMAND, "--config", config), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("tracegrad: ")]
    assert errors == [
        f"tracegrad: port {port} on 127.0.0.1 is in use, so the sidecar cannot start:"
        " stop what holds it or choose another port"
    ]
    assert "Traceback" not in done.stderr


def test_the_sidecar_never_loads_torch() -> None:
    check = "import sys, sidecar.server; sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    assert subprocess.run((sys.executable, "-c", check), timeout=30, check=False).returncode == 0


def test_without_entries_every_model_is_the_policy_of_the_local_engine() -> None:
    routes = build_routes(Settings())
    (route,) = routes.candidates("anything")
    assert route.policy is not None
    assert (route.policy.name, route.upstreams) == ("policy", ("http://127.0.0.1:8000",))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([("a", "http://e", "p"), ("b", "http://e/v1", "q")], "serves two policies"),
        ([("a", "http://e", None), ("a", "http://f", None)], "same name"),
        ([("a", [], None)], "no upstream"),
    ],
)
def test_routes_that_contradict_each_other_are_refused(entries: list[Any], said: str) -> None:
    model = [{"name": name, "upstream": upstream, "policy": policy} for name, upstream, policy in entries]
    with pytest.raises(SettingsError, match=said):
        build_routes(Settings.model_validate({"model": model}))


def test_two_names_may_share_a_policy_and_keys_stay_secret() -> None:
    model = [
        {"name": name, "upstream": "http://e", "policy": "p", "api_key": "sk-secret"} for name in ("small", "small-2")
    ]
    routes = build_routes(Settings.model_validate({"model": model}))
    assert list(routes.policies) == ["p"]
    assert len(routes.policies["p"].replicas) == 1
    assert "sk-secret" not in repr(routes.entries)


async def test_agents_may_connect_while_the_engine_starts(
    tmp_path: Path, receiver: Receiver, another_fake: Any
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    settings = Settings.model_validate(
        {
            "otlp": receiver.url,
            "sidecar": {"port": 0, "admin_port": 0, "data": tmp_path},
            "model": [{"name": "policy", "upstream": f"http://127.0.0.1:{port}", "policy": "policy"}],
        }
    )
    async with serve(settings, shutdown_s=1.0) as ports, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{ports.port}/v1/chat/completions"
        assert (await client.post(url, json=CHAT)).status == 502
        async with another_fake(port):
            answer = await client.post(url, json=CHAT)
            assert (answer.status, answer.headers["x-tracegrad-policy"]) == (200, "policy@0")


def test_a_port_is_claimed_by_one_unless_it_is_shared() -> None:
    with claim("127.0.0.1", 0) as first:
        port = port_of(first)
        first.listen()
        share(first)
        with claim("127.0.0.1", port, shared=True) as worker:
            worker.listen()
            assert port_of(worker) == port
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is in use"):
            claim("127.0.0.1", port)
    with pytest.raises(TracegradError, match="choose another address"):
        claim("192.0.2.1", 0)


async def test_a_second_sidecar_may_take_over_the_port(tmp_path: Path, fake: FakeVllm, receiver: Receiver) -> None:
    model = {"name": "policy", "policy": "policy", "upstream": fake.url}
    first_file = configuration(tmp_path, receiver.url, model, reuse_port=True)
    async with sidecar_process(first_file) as first, aiohttp.ClientSession() as client:
        ports = {"port": int(first.url.rpartition(":")[2]), "admin_port": int(first.admin.rpartition(":")[2])}
        second_file = configuration(tmp_path, receiver.url, model, reuse_port=True, **ports)
        fake.token_delay_s = 0.2
        answer = await client.post(f"{first.url}/v1/chat/completions", json=CHAT | {"stream": True})
        async with sidecar_process(second_file) as second:
            assert second.url == first.url
            first.signal(signal.SIGTERM)
            await first.told("sidecar stopping")
            async with aiohttp.ClientSession() as later:
                for _ in range(5):
                    assert (await later.get(f"{second.admin}/healthz")).status == 200
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            assert await first.ended() == 0
            async with aiohttp.ClientSession() as later:
                assert (await later.post(f"{second.url}/v1/chat/completions", json=CHAT)).status == 200
