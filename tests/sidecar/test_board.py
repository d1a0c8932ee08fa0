"""Slots shared by processes: what the publisher orders reaches every worker, and only while the publisher lives."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_vllm import FakeVllm

from sidecar.background import running
from sidecar.board import ASIDE, BROKEN, PAUSED, UPDATING, Board
from sidecar.policy import Policy
from sidecar.replica import Replica
from tracegrad.errors import TracegradError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "board"


def test_one_process_has_a_board_of_its_own() -> None:
    board = Board.memory(2)
    assert (board.led, board.flags(1), board.epoch(1), board.wanted(1), board.load(1)) == (True, 0, 0, None, 0)
    board.set_flag(1, UPDATING | PAUSED, on=True)
    board.set_flag(1, UPDATING, on=False)
    board.set_wanted(1, 7)
    board.bump(1)
    board.count(1, 1)
    assert (board.flags(1), board.epoch(1), board.wanted(1), board.load(1)) == (PAUSED, 1, 7, 1)
    assert (board.flags(0), board.epoch(0), board.wanted(0), board.load(0)) == (0, 0, None, 0)


WORKER = """
import sys, pathlib
from sidecar.board import Board
worker = int(sys.argv[2])
board = Board.attach(pathlib.Path(sys.argv[1]), worker)
for _ in range(worker + 2):
    board.count(1, 1)
board.count(1, -1)
"""


def test_the_load_is_the_sum_over_processes(file: Path) -> None:
    publisher = Board.shared(file, 2, workers=2)
    for worker in range(2):
        subprocess.run((sys.executable, "-c", WORKER, str(file), str(worker)), timeout=30, check=True)
    assert (publisher.load(0), publisher.load(1)) == (0, 1 + 2)
    publisher.clear_worker(1)
    assert publisher.load(1) == 1, "what a dead worker served is no load"
    Board.attach(file, 0)
    assert publisher.load(1) == 0, "neither is what the one before it served"


def test_orders_reach_a_worker_while_the_publisher_lives(file: Path) -> None:
    publisher = Board.shared(file, 1, workers=1)
    worker = Board.attach(file, 0)
    publisher.set_flag(0, UPDATING, on=True)
    publisher.bump(0)
    publisher.set_wanted(0, 3)
    assert (worker.led, worker.flags(0), worker.epoch(0), worker.wanted(0)) == (True, UPDATING, 1, 3)
    assert not Board.attach(file, 0, lease_s=0.0).led
    with pytest.raises(AssertionError):
        worker.bump(0)
    with pytest.raises(AssertionError):
        publisher.count(0, 1)


def test_a_new_publisher_ends_what_a_dead_one_began(file: Path) -> None:
    dead = Board.shared(file, 2, workers=1)
    worker = Board.attach(file, 0)
    dead.set_flag(0, UPDATING, on=True)
    dead.bump(0)
    dead.set_flag(1, PAUSED | ASIDE, on=True)
    Board.shared(file, 2, workers=1)
    assert (worker.flags(0), worker.epoch(0)) == (BROKEN, 2), "its weights are unknown"
    assert (worker.flags(1), worker.epoch(1)) == (0, 0)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_board_of_another_shape_is_made_anew(file: Path) -> None:
    old = Board.shared(file, 1, workers=1)
    old.set_wanted(0, 5)
    new = Board.shared(file, 2, workers=3)
    assert (new.wanted(0), new.workers, old.wanted(0)) == (None, 3, 5)
    with pytest.raises(TracegradError, match="3 workers, not for number 3"):
        Board.attach(file, 3)
    file.write_bytes(b"x" * 64)
    with pytest.raises(TracegradError, match="not a board"):
        Board.attach(file, 0)
    with pytest.raises(TracegradError, match="main process first"):
        Board.attach(file.with_name("absent"), 0)
    (file.parent / "taken").write_bytes(b"")
    with pytest.raises(TracegradError, match=r"set \[sidecar\] data"):
        Board.shared(file.parent / "taken" / "board", 1, workers=1)


async def test_a_worker_never_takes_a_swap_and_back_for_no_swap(file: Path, fake: FakeVllm) -> None:
    publisher = Replica(fake.url, Board.shared(file, 1, workers=1))
    worker = Replica(fake.url, Board.attach(file, 0))
    fake.version = "1"
    async with aiohttp.ClientSession() as session, running(worker.watch(session), "watch"):
        start = await worker.confirmed()
        assert start.version == 1
        assert await worker.confirmed() == start
        for version in (2, 1):
            publisher.begin_update()
            fake.version = str(version)
            publisher.end_update(version, touched=True)
        end = await worker.confirmed()
        assert (end.version, end == start) == (1, False), "the engine says 1 again, and yet the answer is mixed"


async def test_an_update_that_began_is_seen_before_the_engine_says_so(file: Path, fake: FakeVllm) -> None:
    publisher = Replica(fake.url, Board.shared(file, 1, workers=1))
    worker = Replica(fake.url, Board.attach(file, 0))
    async with aiohttp.ClientSession() as session, running(worker.watch(session), "watch"):
        start = await worker.confirmed()
        publisher.begin_update()
        assert (await worker.confirmed()).version is None
        publisher.end_update(None, touched=True)
        assert (await worker.confirmed()).version is None, "half-loaded weights have no version, whatever is said"
        assert worker.broken
        assert start.version == 0


async def test_new_calls_wait_in_a_worker_while_weights_change(file: Path, fake: FakeVllm) -> None:
    publisher = Replica(fake.url, Board.shared(file, 1, workers=1))
    worker = Replica(fake.url, Board.attach(file, 0))
    policy = Policy("policy", "policy", (worker,))
    async with aiohttp.ClientSession() as session, running(worker.watch(session), "watch"):
        assert await policy.choose([]) is worker
        publisher.begin_update()
        waiting = [asyncio.create_task(policy.choose([])) for _ in range(3)]
        await asyncio.wait(waiting, timeout=0.1)
        assert not any(one.done() for one in waiting)
        fake.version = "1"
        publisher.end_update(1, touched=True)
        assert await asyncio.gather(*waiting) == [worker] * 3
        assert worker.version == 1


async def test_a_publisher_that_dies_with_the_gate_closed_does_not_stop_the_service(file: Path, fake: FakeVllm) -> None:
    publisher = Replica(fake.url, Board.shared(file, 1, workers=1))
    worker = Replica(fake.url, Board.attach(file, 0, lease_s=0.2))
    policy = Policy("policy", "policy", (worker,))
    async with aiohttp.ClientSession() as session, running(worker.watch(session), "watch"):
        publisher.begin_update()
        assert await asyncio.wait_for(policy.choose([]), 10) is worker
        assert worker.version is None, "nothing that it answers now is trained on"
        successor = Replica(fake.url, Board.shared(file, 1, workers=1))
        assert successor.broken
        assert (await worker.confirmed()).version is None
        successor.begin_update()
        successor.end_update(4, touched=True)
        fake.version = "4"
        assert (await worker.confirmed()).version == 4


async def test_a_worker_holds_calls_for_an_engine_that_is_to_be_brought_up_to_date(file: Path, fake: FakeVllm) -> None:
    publisher = Replica(fake.url, Board.shared(file, 1, workers=1))
    worker: Any = Replica(fake.url, Board.attach(file, 0))
    publisher.set_wanted(6)
    async with aiohttp.ClientSession() as session, running(worker.watch(session), "watch"):
        assert (await worker.confirmed()).version == 0
        assert not worker.is_open
        publisher.set_aside("cannot be loaded")
        assert worker.is_open
        assert worker.aside
