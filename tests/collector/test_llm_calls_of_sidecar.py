"""From a real sidecar to a real collector: what `llm_calls` and the trainer show is what the engine saw."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sidecar_harness import listening
from toy_engine import ToyEngine
from toy_rollouts import SYSTEM, bytes_per_rollout, chat, play

from sidecar.messages import input_messages
from sidecar.server import serve
from tracegrad.settings import Settings
from trainer.rollout import Rollout
from trainer.store import Store

Json = dict[str, Any]


@dataclass
class World:
    """A sidecar between a toy engine and the collector, and an agent of one rollout."""

    engine: ToyEngine
    session: aiohttp.ClientSession
    sidecar: str
    collector: Any
    rollout_id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def url(self) -> str:
        return f"{self.sidecar}/rollout/{self.rollout_id}/v1"

    async def rows(self, count: int) -> list[Json]:
        """The rollout's rows, once all are there."""
        found: list[Json] = []
        for _ in range(400):
            query = f"SELECT * FROM llm_calls WHERE rollout_id = '{self.rollout_id}' ORDER BY started_at, choice_index"
            answer = await asyncio.to_thread(self.collector.sql, query + " FORMAT JSONEachRow")
            found = [json.loads(line) for line in answer.splitlines()]
            if len(found) >= count:
                break
            await asyncio.sleep(0.05)
        assert len(found) == count
        return found

    async def check(self, count: int) -> list[Json]:
        """Every row against what the engine saw; returns them."""
        rows = await self.rows(count)
        for row in rows:
            seen = self.engine.seen[row["response_id"]][row["choice_index"]]
            assert row["prompt_token_ids"] == seen.prompt
            assert row["response_token_ids"] == seen.response
            assert row["input_messages"] == input_messages(seen.messages)
            assert (row["trainable"], row["untrainable_reason"]) == (True, "")
        return rows

    async def sent_ids(self) -> list[int]:
        """How many prompt ids each row's span holds itself."""
        query = f"SELECT n_new FROM recorded_calls WHERE rollout_id = '{self.rollout_id}' ORDER BY started_at"
        return [int(line) for line in (await asyncio.to_thread(self.collector.sql, query)).split()]


@pytest.fixture
async def world(collector: Any, tmp_path: Path) -> AsyncIterator[World]:
    engine = ToyEngine()
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(listening(engine.application()))
        models = [
            {"name": "policy", "upstream": upstream, "policy": "policy"},
            {"name": "provider", "upstream": upstream},
        ]
        sidecar = {"port": 0, "admin_port": 0, "data": tmp_path / "sidecar", "weights": tmp_path / "weights"}
        settings = Settings.model_validate({"otlp": collector.otlp, "sidecar": sidecar, "model": models})
        ports = await stack.enter_async_context(serve(settings))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield World(engine, session, f"http://127.0.0.1:{ports.port}", collector)


@pytest.mark.parametrize("strips_thinking", [False, True])
async def test_every_turn_is_whole(world: World, strips_thinking: bool) -> None:
    world.engine.strips_thinking = strips_thinking
    await play(world.session, world.url, 32)
    rows = await world.check(32)
    assert len(rows[-1]["prompt_token_ids"]) > 20 * 200
    sent = await world.sent_ids()
    assert max(sent[1:]) < 300, "every call after the first holds only what is new"
    with contextlib.closing(Store(world.collector.clickhouse)) as store:
        rollout = Rollout(world.rollout_id, 0, "", "", "", "running", "", 0.0, (), {})
        (filled,) = await asyncio.to_thread(store.filled, [rollout])
    assert {call.span_id: call.prompt_token_ids.tolist() for call in filled.calls} == {
        row["span_id"]: row["prompt_token_ids"] for row in rows
    }


async def test_branches_retries_and_choices_are_whole(world: World) -> None:
    messages: list[Json] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "How?"}]
    said = await chat(world.session, world.url, messages)
    turn = [*messages, said, {"role": "tool", "tool_call_id": "x", "content": "found " * 40}]
    await chat(world.session, world.url, turn)
    await chat(world.session, world.url, turn)  # again
    branch = [*messages, said, {"role": "tool", "tool_call_id": "x", "content": "not found"}]
    await chat(world.session, world.url, branch, n=3)
    body = {"model": "policy", "messages": branch, "n": 3}
    async with world.session.post(f"{world.url}/chat/completions", json=body) as response:  # without tools
        third = (await response.json())["choices"][2]["message"]
    await chat(world.session, world.url, [*branch, third, {"role": "user", "content": "And then?"}])
    await world.check(1 + 1 + 1 + 3 + 3 + 1)


async def test_messages_of_a_provider_are_whole_and_sent_once(world: World) -> None:
    messages: list[Json] = [{"role": "user", "content": SYSTEM}]
    for _ in range(5):
        said = await chat(world.session, world.url, messages, model="provider")
        messages = [*messages, said, {"role": "user", "content": "More. " * 50}]
    rows = await world.rows(5)
    for row in rows:
        (seen,) = world.engine.seen[row["response_id"]]
        assert row["input_messages"] == input_messages(seen.messages)
        assert (row["prompt_token_ids"], row["untrainable_reason"]) == ([], "passthrough")
    query = (
        f"SELECT max(length(input_messages)) FROM recorded_calls WHERE rollout_id = '{world.rollout_id}' AND depth > 0"
    )
    assert int(await asyncio.to_thread(world.collector.sql, query)) < len(SYSTEM)


async def test_a_failed_call_leaves_the_next_one_whole(world: World) -> None:
    messages: list[Json] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "How?"}]
    said = await chat(world.session, world.url, messages)
    messages += [said, {"role": "user", "content": "Go on."}]
    world.engine.error = 500
    with pytest.raises(aiohttp.ClientResponseError):
        await chat(world.session, world.url, messages)
    world.engine.error = None
    await chat(world.session, world.url, messages)
    first, failed, again = await world.rows(3)
    assert (failed["untrainable_reason"], failed["prompt_token_ids"]) == ("error", [])
    assert failed["input_messages"] == again["input_messages"] == input_messages(messages)
    (seen,) = world.engine.seen[again["response_id"]]
    assert again["prompt_token_ids"] == seen.prompt
    assert first["trainable"] and again["trainable"]


@pytest.mark.parametrize("strips_thinking", [False, True])
async def test_twice_the_turns_are_twice_the_bytes(strips_thinking: bool) -> None:
    short = await bytes_per_rollout(16, strips_thinking=strips_thinking)
    assert await bytes_per_rollout(32, strips_thinking=strips_thinking) / short <= 2.2


async def test_twice_the_turns_are_twice_the_bytes_in_the_store(world: World) -> None:
    sizes = []
    for turns in (16, 32):
        world.rollout_id = secrets.token_hex(8)
        await play(world.session, world.url, turns)
        await world.check(turns)
        query = f"""SELECT sum(byteSize(SpanAttributes) + byteSize(PromptTokenIds) + byteSize(ResponseTokenIds)
            + byteSize(ResponseLogprobs)) FROM otel_traces WHERE RolloutId = '{world.rollout_id}'"""
        sizes.append(int(await asyncio.to_thread(world.collector.sql, query)))
    assert sizes[1] / sizes[0] <= 2.2
