"""The spool gives back what was put, once, whatever happened to its files in between."""

import asyncio
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.spool import Spool, SpoolFullError
from sidecar.spool_segment import HEAD, START, Batch

LIMIT = 1 << 20
SEGMENT = 16 << 10


class Process:
    """A spool as a process has it: it may die."""

    def __init__(self, root: Path, limit: int = LIMIT) -> None:
        self.spool = Spool(root, limit_bytes=limit, segment_bytes=SEGMENT)
        self.spool.open()
        self.spool.adopt()

    async def die(self) -> None:
        """What the kernel does: files are closed, and nothing else happens."""
        while self.spool._garbage:  # noqa: ASYNC110 - its threads, which do not really die
            await asyncio.sleep(0.001)
        assert self.spool._slot is not None
        self.spool._slot.release()
        for segment in self.spool._segments:
            segment.close()

    async def batches(self, limit: int = 4 << 10) -> list[Batch]:
        found = []
        while (batch := await self.spool.take(limit)) is not None:
            found.append(batch)
        return found

    async def drain(self) -> list[bytes]:
        """All there is, acknowledged."""
        found = await self.batches()
        for batch in found:
            self.spool.acknowledge(batch)
        return [bytes(record) for batch in found for record in batch.records]


def records(count: int, size: int = 1000) -> list[bytes]:
    return [f"{number:06d}".encode() * (size // 6) for number in range(count)]


def fill(process: Process, wanted: list[bytes]) -> None:
    for record in wanted:
        process.spool.append(record)


def files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.segment"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def process(root: Path) -> Iterator[Process]:
    started = Process(root)
    yield started
    started.spool.close()


async def test_what_is_put_comes_back_in_order_and_its_files_go(process: Process, root: Path) -> None:
    wanted = records(100)
    fill(process, wanted)
    assert len(files(root)) > 5
    assert await process.drain() == wanted
    assert (process.spool.waiting_bytes, process.spool.unread_bytes) == (0, 0)
    fill(process, records(100))
    assert await process.drain() == wanted
    process.spool.close()
    assert files(root) == []


async def test_records_of_any_size(process: Process) -> None:
    wanted = [b"x", b"y" * (3 * SEGMENT), b"z", b"w" * 5000, b"v" * (2 * SEGMENT)]
    fill(process, wanted)
    assert await process.drain() == wanted


async def test_what_was_not_acknowledged_comes_again_after_a_death_and_nothing_else(root: Path) -> None:
    first = Process(root)
    wanted = records(60)
    fill(first, wanted)
    batches = await first.batches()
    for batch in batches[:5]:
        first.spool.acknowledge(batch)
    first.spool.acknowledge(batches[6])  # out of order: the sixth is still open
    sent = sum(len(batch.records) for batch in batches[:5])
    await first.die()
    second = Process(root)
    assert await second.drain() == wanted[sent:]
    assert second.spool.adopted == len(wanted) - sent
    await second.die()
    third = Process(root)
    assert await third.drain() == []
    assert third.spool.torn == 0
    third.spool.close()
    assert files(root) == []


async def test_files_that_are_written_over_never_give_back_what_they_held(root: Path) -> None:
    first = Process(root)
    fill(first, records(40))
    await first.drain()
    inodes = {path.stat().st_ino for path in files(root)}
    new = [record.swapcase() + b"new" for record in records(3)]
    for _ in range(20):
        fill(first, records(10))
        await first.drain()
    fill(first, new)
    assert inodes & {path.stat().st_ino for path in files(root)}, "no file was written over: this tests nothing"
    await first.die()
    second = Process(root)
    assert await second.drain() == new
    assert second.spool.torn == 0
    second.spool.close()


@pytest.mark.parametrize("kept", [1, HEAD - 1, HEAD, HEAD + 1, HEAD + 500, HEAD + 995])
async def test_a_torn_tail_is_recognised_set_aside_and_counted(root: Path, kept: int) -> None:
    first = Process(root)
    wanted = records(5)
    fill(first, wanted)
    await first.die()
    (path,) = files(root)
    size = HEAD + len(wanted[0])
    os.truncate(path, START + 4 * size + kept)
    second = Process(root)
    assert await second.drain() == wanted[:4]
    assert second.spool.torn == 1
    fill(second, wanted)
    assert await second.drain() == wanted
    second.spool.close()
    assert [one.name for one in (root / "aside").iterdir()] == [path.name]


async def test_damage_in_the_middle_costs_only_what_it_hit(root: Path) -> None:
    first = Process(root)
    wanted = records(10)
    fill(first, wanted)
    await first.die()
    (path,) = files(root)
    size = HEAD + len(wanted[0])
    with path.open("r+b") as file:
        file.seek(START + 3 * size + HEAD + 17)
        file.write(b"!")
        file.seek(START + 6 * size)  # a hole, where a page was never written
        file.write(bytes(size))
    second = Process(root)
    assert await second.drain() == wanted[:3] + wanted[4:6] + wanted[7:]
    assert second.spool.torn == 2
    second.spool.close()


async def test_files_that_are_no_segments_are_set_aside(root: Path) -> None:
    Process(root).spool.close()
    (root / "0" / "1.segment").write_bytes(b"")
    (root / "0" / "2.segment").write_bytes(b"TGSP")
    (root / "0" / "3.segment").write_bytes(b"\0" * 100)
    (root / "0" / "4.segment").write_bytes(os.urandom(5000))
    process = Process(root)
    assert await process.drain() == []
    assert process.spool.torn == 3, "an empty file held nothing"
    assert sorted(one.name[0] for one in (root / "aside").iterdir()) == ["2", "3", "4"]
    process.spool.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), seed=st.integers(0, 2**32))
async def test_whatever_happens_to_a_file_whole_records_come_and_nothing_else(
    tmp_path: Path, data: st.DataObject, seed: int
) -> None:
    chance = random.Random(seed)
    root = tmp_path / "any"
    shutil.rmtree(root, ignore_errors=True)
    first = Process(root)
    wanted = [chance.randbytes(chance.randint(1, 900)) for _ in range(30)]
    fill(first, wanted)
    await first.die()
    path = chance.choice(files(root))
    content = bytearray(path.read_bytes())
    ends = START + sum(HEAD + len(one) for one in wanted)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        how = data.draw(st.sampled_from(["flip", "zeros", "noise", "cut"]))
        length = data.draw(st.integers(1, 2000))
        if how == "flip":
            content[at] ^= 1 << (length % 8)
        elif how == "cut":
            del content[max(1, at) :]
        else:
            stop = min(len(content), at + length)
            content[at:stop] = bytes(stop - at) if how == "zeros" else chance.randbytes(stop - at)
    untouched = bytes(content[:ends]) == path.read_bytes()[:ends]
    path.write_bytes(content)
    second = Process(root)
    found = await second.drain()
    second.spool.close()
    remaining = iter(wanted)
    assert all(record in remaining for record in found), "in order, and only what was put"
    assert found == wanted if untouched else True
    if found != wanted and not len(content) < ends:
        assert second.spool.torn, "what is missing is counted"


async def test_the_spool_is_bounded_and_takes_more_once_there_is_room(process: Process, root: Path) -> None:
    wanted = records(2000)
    taken = 0
    with pytest.raises(SpoolFullError):
        for record in wanted:
            process.spool.append(record)
            taken += 1
    on_disk = sum(path.stat().st_size for path in files(root))
    assert LIMIT * 0.9 < on_disk <= LIMIT + len(files(root)) * 4
    assert await process.drain() == wanted[:taken]
    again = wanted[: taken - SEGMENT // 1000]  # the file that is being written goes when the next one is begun
    fill(process, again)
    assert await process.drain() == again


async def test_a_spool_that_is_sent_as_it_is_filled_is_never_full(root: Path) -> None:
    process = Process(root, limit=SEGMENT)
    for _ in range(50):
        fill(process, records(3))
        assert len(await process.drain()) == 3
    process.spool.close()


async def test_processes_have_slots_of_their_own_and_the_dead_leave_theirs(root: Path) -> None:
    first, second = Process(root), Process(root)
    fill(first, records(20))
    fill(second, records(5))
    assert {path.parent.name for path in files(root)} == {"0", "1"}
    assert len(await second.drain()) == 5, "what another one holds is not touched"
    second.spool.adopt()
    assert await second.drain() == []
    await first.die()
    second.spool.adopt()
    assert await second.drain() == records(20)
    assert second.spool.adopted == 20
    second.spool.close()
    assert files(root) == []


async def test_what_the_dead_left_is_taken_over_as_far_as_there_is_room(root: Path) -> None:
    first, second = Process(root), Process(root)
    wanted = records(700)
    fill(first, wanted)
    fill(second, wanted)
    await first.die()
    second.spool.adopt()
    assert second.spool.used_bytes <= LIMIT
    found: list[bytes] = []
    while more := await second.drain():
        found += more
        second.spool.adopt()
    assert sorted(found) == sorted(wanted * 2)
    second.spool.close()


async def test_a_file_that_vanishes_is_logged_and_the_rest_goes_on(process: Process, root: Path) -> None:
    wanted = records(60)
    fill(process, wanted)
    for segment in process.spool._segments:
        segment.close()
    files(root)[1].unlink()
    found = await process.drain()
    assert found[0] == wanted[0]
    assert found[-1] == wanted[-1]
    assert len(found) < len(wanted)
    assert process.spool.torn == 1


async def test_syncing_while_files_come_and_go(process: Process) -> None:
    for _ in range(5):
        fill(process, records(20))
        await process.spool.sync()
        await process.drain()
        await process.spool.sync()
    assert process.spool.waiting_bytes == 0
