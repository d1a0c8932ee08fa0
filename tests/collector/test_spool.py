"""The spool gives back what was appended, in order, whatever happened to its process and its files in between."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.spool import Batch, Spool, SpoolFullError
from collector.spool_segment import HEAD, START

LIMIT = 1 << 20
SEGMENT = 16 << 10


def opened(directory: Path, **options: object) -> Spool:
    chosen: dict[str, object] = {"max_bytes": LIMIT, "segment_bytes": SEGMENT, **options}
    return Spool(directory, **chosen)  # type: ignore[arg-type]


def die(spool: Spool) -> None:
    """What the kernel does when a process is killed: its files are closed, and nothing else happens."""
    spool._cursor.close()
    for segment in spool._segments:
        segment.close()


def batches(spool: Spool, limit: int = 4 << 10) -> list[Batch]:
    found = []
    while (batch := spool.read(limit)) is not None:
        found.append(batch)
    return found


def held(found: list[Batch]) -> list[bytes]:
    return [bytes(record) for batch in found for record in batch.records]


def drain(spool: Spool) -> list[bytes]:
    """All there is, stored."""
    found = batches(spool)
    for batch in found:
        spool.begin(batch)
        spool.done(batch)
    return held(found)


def records(count: int, size: int = 1000) -> list[bytes]:
    return [f"{number:06d}".encode() * (size // 6) for number in range(count)]


def fill(spool: Spool, wanted: list[bytes], group: int = 3) -> None:
    for first in range(0, len(wanted), group):
        spool.append(wanted[first : first + group])


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.segment"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "traces"


@pytest.fixture(params=[0, 5000, 64 << 20], ids=["from files", "some cached", "cached"])
def spool(directory: Path, request: pytest.FixtureRequest) -> Iterator[Spool]:
    started = opened(directory, cache_bytes=request.param)
    yield started
    started.close()


def test_what_is_appended_is_read_in_order_and_its_files_go(spool: Spool, directory: Path) -> None:
    wanted = records(100)
    fill(spool, wanted)
    assert len(segments(directory)) > 5
    assert spool.figures().waiting_records == 100
    assert drain(spool) == wanted
    assert (spool.figures().waiting_bytes, spool.figures().waiting_records) == (0, 0)
    assert len(segments(directory)) == 1
    fill(spool, wanted)
    assert drain(spool) == wanted
    spool.close()
    assert segments(directory) == []


def test_reading_between_appends(spool: Spool) -> None:
    wanted, found = records(200), []
    for first in range(0, 200, 10):
        fill(spool, wanted[first : first + 10])
        if first % 20:
            found += drain(spool)
    assert found + drain(spool) == wanted


def test_requests_of_any_size(spool: Spool) -> None:
    wanted = [b"x", b"", b"y" * (3 * SEGMENT), b"z", b"w" * 5000, b"v" * (2 * SEGMENT)]
    fill(spool, wanted)
    assert drain(spool) == wanted


def test_a_group_of_thousands(spool: Spool) -> None:
    wanted = [b"%d" % number for number in range(3000)]
    spool.append(wanted)
    assert drain(spool) == wanted


def test_a_full_spool_takes_nothing_of_a_group_and_something_again_when_there_is_room(spool: Spool) -> None:
    wanted = records(1100, 900)
    fill(spool, wanted, 1)
    with pytest.raises(SpoolFullError):
        spool.append(records(300))
    first = spool.read(300_000)
    assert first is not None
    with pytest.raises(SpoolFullError):
        spool.append(records(300))
    spool.done(first)
    spool.append(records(3))
    assert held([first]) + drain(spool) == wanted + records(3)


def test_what_was_not_done_comes_again_after_a_death_and_what_was_begun_is_in_doubt(directory: Path) -> None:
    first = opened(directory)
    wanted = records(60)
    fill(first, wanted)
    before = batches(first)
    for batch in before[:7]:
        first.begin(batch)
    for batch in before[:5]:
        first.done(batch)
    die(first)
    second = opened(directory)
    assert second.figures().in_doubt_bytes == sum(batch.size + HEAD * len(batch.records) for batch in before[5:7])
    again = batches(second, 100)
    assert held(again) == held(before[5:])
    doubted = [batch for batch in again if batch.in_doubt]
    assert [batch.name for batch in doubted] == [batch.name for batch in before[5:7]]
    assert [held([batch]) for batch in doubted] == [held([batch]) for batch in before[5:7]]
    second.close()


def test_sync_says_up_to_where(spool: Spool) -> None:
    end = spool.append([b"one"])
    assert spool.sync() >= end
    later = spool.append([b"two"])
    assert end < later <= spool.sync()
