"""What is known of an engine's process is forgotten when another one may have taken its place."""

import asyncio
from typing import Any

import fake_vllm
import pytest
from publishing import ready

from sidecar import engine
from sidecar.engine import EngineError
from sidecar.forward import control_session
from sidecar.replica import Replica

MARK = {"system_fingerprint": "vllm-1"}


@pytest.fixture
def replica() -> Replica:
    one = Replica("http://engine")
    one.found(1)
    one.traits.logprobs_mode = "raw_logprobs"
    one.traits.streamed(MARK)
    return one


async def test_contact_lost(replica: Replica) -> None:
    replica.traits.pinned_mode = "raw_logprobs"
    replica.lost("no engine answers")
    assert (replica.traits.logprobs_mode, replica.traits.stream_mark) == (None, None)
    assert replica.traits.pinned_mode == "raw_logprobs", "the policy still pins it"


async def test_an_engine_that_is_too_slow_is_told_with_the_limit(harness: Any, fake: Any) -> None:
    fake.telling.clear()
    async with control_session() as session:
        with pytest.raises(EngineError, match=r"does not answer /weight_info within 0\.05 s$"):
            await engine.weight_version(session, fake.url, 0.05)
    fake.telling.set()


async def test_a_connection_broken_off(replica: Replica) -> None:
    replica.doubt()
    assert replica.traits.stream_mark is None


async def test_a_version_that_nobody_published(replica: Replica) -> None:
    replica.found(1)
    assert replica.traits.stream_mark == MARK
    replica.found(2)
    assert replica.traits.stream_mark is None


async def test_a_stream_that_told_nothing_leaves_what_is_known(replica: Replica) -> None:
    replica.traits.streamed(None)
    assert replica.traits.stream_mark == MARK
    replica.traits.streamed({})
    assert replica.traits.stream_mark == {}


async def test_streams_of_a_restarted_engine_show_its_own_fingerprint(
    harness_for: Any, another_fake: Any, free_port: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    entry = {"name": "policy", "upstream": f"http://127.0.0.1:{port}", "policy": "policy"}
    async with another_fake(port):
        harness = await harness_for(entry)
        await ready(harness)
        for _ in range(2):
            assert fake_vllm.FINGERPRINT in await (await harness.chat({"stream": True})).text()
    async with asyncio.timeout(20):
        while (await harness.session.get(f"{harness.admin}/readyz")).status == 200:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    old = fake_vllm.FINGERPRINT
    monkeypatch.setattr(fake_vllm, "FINGERPRINT", "vllm-of-another-build")
    async with another_fake(port):
        await ready(harness)
        shown = await (await harness.chat({"stream": True})).text()
    assert "vllm-of-another-build" in shown
    assert old not in shown
