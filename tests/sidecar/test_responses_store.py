"""Stored responses: bounded, each tenant's own, kept over restarts and shared between processes."""

import asyncio
import contextlib
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness

from sidecar.responses.store import ResponseStore, Stored, StoreError


def turn(number: int, previous: int | None = None, text: str = "") -> Stored:
    return Stored(f"resp_{number}", None if previous is None else f"resp_{previous}", [{"text": text}], {"n": number})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "responses.sqlite"


def opened(file: Path, max_count: int = 100, max_bytes: int = 1 << 20) -> ResponseStore:
    return ResponseStore(file, max_count=max_count, max_bytes=max_bytes)


def ids(chain: list[Stored] | None) -> list[str] | None:
    return None if chain is None else [stored.id for stored in chain]


def test_a_conversation_is_a_chain_and_may_branch(file: Path) -> None:
    store = opened(file)
    for number, previous in ((1, None), (2, 1), (3, 2), (4, 2)):
        store.put("a", turn(number, previous))
    assert ids(store.chain("a", "resp_3")) == ["resp_1", "resp_2", "resp_3"]
    assert ids(store.chain("a", "resp_4")) == ["resp_1", "resp_2", "resp_4"]
    assert store.get("a", "resp_4") == turn(4, 2)
    assert store.delete("a", "resp_1")
    assert not store.delete("a", "resp_1")
    assert store.chain("a", "resp_4") is None, "a conversation without its beginning is another one"


def test_tenants_have_their_own(file: Path) -> None:
    store = opened(file)
    store.put("a", turn(1))
    store.put("b", turn(2, 1))
    assert store.get("b", "resp_1") is None
    assert store.chain("b", "resp_2") is None
    assert not store.delete("b", "resp_1")
    assert store.get("a", "resp_1") == turn(1)


def test_the_longest_unused_go_first_and_only_the_tenants_own(file: Path) -> None:
    store = opened(file, max_count=4)
    store.put("other", turn(0))
    for number in (1, 2, 3):
        store.put("a", turn(number))
    store.put("a", turn(4, 1))  # uses the oldest
    store.put("a", turn(5))
    assert [number for number in range(1, 6) if store.get("a", f"resp_{number}")] == [1, 3, 4, 5]
    assert store.get("other", "resp_0")


def test_bytes_are_bounded(file: Path) -> None:
    store = opened(file, max_bytes=10_000)
    for number in range(50):
        store.put("a", turn(number, text="x" * 900))
    kept = [number for number in range(50) if store.get("a", f"resp_{number}")]
    assert kept == list(range(40, 50))
    store.put("a", turn(99, text="x" * 10_000))
    assert (store.get("a", "resp_99"), store.lost) == (None, 1)
    assert store.get("a", "resp_49"), "what is too large pushes nothing out"


def test_another_process_and_a_restart_see_them(file: Path) -> None:
    first, second = opened(file), opened(file)
    first.put("a", turn(1))
    second.put("a", turn(2, 1))
    code = (
        "import sys, pathlib; from sidecar.responses.store import *;"
        "store = ResponseStore(pathlib.Path(sys.argv[1]), max_count=3, max_bytes=10000);"
        "store.put('a', Stored('resp_3', 'resp_2', [], {}))"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=True)
    assert ids(first.chain("a", "resp_3")) == ["resp_1", "resp_2", "resp_3"]
    first.close()
    second.close()
    assert ids(opened(file).chain("a", "resp_3")) == ["resp_1", "resp_2", "resp_3"]


def test_nobody_else_may_read_the_file(file: Path) -> None:
    store = opened(file)
    store.put("a", turn(1))
    files = list(file.parent.iterdir())
    assert len(files) == 3, "the file, its log and its index"
    assert {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}


def test_a_file_that_cannot_be_used_costs_the_state_alone(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"no database" * 1000)
    store = opened(file)
    store.put("a", turn(1))
    assert store.lost == 1
    for use in (store.get, store.chain, store.delete):
        with pytest.raises(StoreError, match=r"responses\.sqlite"):
            use("a", "resp_1")
    file.unlink()
    store.put("a", turn(1))
    assert store.get("a", "resp_1"), "it is tried again"


async def test_answers_go_on_where_nothing_can_be_stored(harness_for: Any, fake: FakeVllm, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "responses.sqlite").mkdir()
    harness: Harness = await harness_for({"name": "policy", "upstream": fake.url, "policy": "policy"})
    async with openai.AsyncOpenAI(base_url=f"{harness.url}/v1", api_key="k", max_retries=0) as client:
        response = await client.responses.create(model="policy", input="Hi")
        assert response.status == "completed"
        with pytest.raises(openai.InternalServerError, match="cannot be read") as caught:
            await client.responses.create(model="policy", input="Hi", previous_response_id=response.id)
        assert caught.value.status_code == 503
        with pytest.raises(openai.InternalServerError, match="cannot be read"):
            await client.responses.retrieve(response.id)


def test_storing_a_turn_touches_only_the_one_before(file: Path) -> None:
    store = opened(file, max_count=1000)
    for number in range(300):
        store.put("a", turn(number, number - 1 if number else None))
    with sqlite3.connect(file) as db:
        written = db.execute("SELECT id, used FROM responses").fetchall()
    store.put("a", turn(300, 299))
    with sqlite3.connect(file) as db:
        assert set(written) < set(db.execute("SELECT id, used FROM responses").fetchall())
    assert len(store.chain("a", "resp_300") or []) == 301


def test_a_conversation_goes_from_its_end(file: Path) -> None:
    store = opened(file, max_count=4)
    for number, previous in ((1, None), (2, 1), (3, 2), (4, None)):
        store.put("a", turn(number, previous))
    store.put("a", turn(5, 4))
    assert store.get("a", "resp_3") is None
    assert ids(store.chain("a", "resp_2")) == ["resp_1", "resp_2"]
    assert store.delete("a", "resp_5")
    store.put("a", turn(6, 1))
    store.put("a", turn(7, 6))
    assert ids(store.chain("a", "resp_7")) == ["resp_1", "resp_6", "resp_7"]
    assert store.get("a", "resp_2") is None, "the longest unused of those that nothing continues"


async def test_a_locked_file_keeps_no_other_call_waiting(harness: Harness, tmp_path: Path) -> None:
    async def respond() -> int:
        asked = {"model": "policy", "input": "Hi"}
        async with harness.session.post(f"{harness.url}/v1/responses", json=asked) as answer:
            await answer.read()
            return answer.status

    assert await respond() == 200
    file = tmp_path / "data" / "responses.sqlite"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(respond())
        for _ in range(5):
            assert (await harness.chat({})).status == 200
        assert not waiting.done(), "it waits for the file, alone"
        db.execute("ROLLBACK")
    assert await waiting == 200
