"""The spool gives back what was appended, in order, also from files and after a death, and knows what is in doubt."""

import errno
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from full_disk import full_disk
from spooled import SEGMENT, batches, die, drain, fill, held, opened, records, segments

from collector import spool as spool_module
from collector.spool import Spool, SpoolFullError
from collector.spool_cursor import MAX_BEGUN
from collector.spool_segment import HEAD


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


def test_sync_says_up_to_where(directory: Path) -> None:
    spool = opened(directory, fsync="interval")
    end = spool.append([b"one"])
    assert spool.sync() >= end
    later = spool.append([b"two"])
    assert end < later <= spool.sync()
    spool.close()


def test_every_request_has_numbers_of_its_own_that_stay(tmp_path: Path) -> None:
    taken: list[tuple[int, int]] = []
    for name in ("one", "two"):
        spool = opened(tmp_path / name)
        fill(spool, records(50))
        first = [(batch.numbers, batch.end_number) for batch in batches(spool)]
        die(spool)
        spool = opened(tmp_path / name)
        again = [(batch.numbers[0], batch.end_number) for batch in batches(spool, 1)]
        assert [number for numbers, _ in first for number in numbers] == [number for number, _ in again]
        assert {end for _, end in first} <= {end for _, end in again}
        taken += again
        spool.close()
    assert len(taken) == 100
    taken.sort()
    assert all(number + 1000 <= end for number, end in taken)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(taken))
    assert 0 <= taken[0][0] <= taken[-1][1] < 1 << 64


def test_a_batch_begun_is_in_doubt_until_it_is_done_however_often_the_process_dies(directory: Path) -> None:
    wanted = records(9)
    spool = opened(directory)
    fill(spool, wanted)
    (batch,) = batches(spool, 4 << 20)
    spool.begin(batch)
    for _ in range(3):
        die(spool)
        spool = opened(directory)
        fill(spool, records(3))
        again = spool.read(100)
        assert again is not None
        assert (again.name, again.in_doubt, held([again])) == (batch.name, True, wanted)
        rest = batches(spool)
        assert rest
        assert not any(one.in_doubt for one in rest)
    spool.done(again)
    die(spool)
    spool = opened(directory)
    assert spool.figures().in_doubt_bytes == 0
    spool.close()


def test_what_was_begun_is_in_doubt_after_an_orderly_end_too(directory: Path) -> None:
    spool = opened(directory)
    fill(spool, records(9))
    begun = spool.read(4000)
    assert begun is not None
    spool.begin(begun)
    spool.close()
    spool = opened(directory)
    assert [batch.in_doubt for batch in batches(spool, 4000)] == [True, False, False]
    spool.close()


def test_batches_done_out_of_order_are_forgotten_in_order(directory: Path) -> None:
    spool = opened(directory)
    fill(spool, records(60))
    found = batches(spool)
    for batch in found[1:]:
        spool.done(batch)
    assert spool.figures().waiting_records == 60
    die(spool)
    spool = opened(directory)
    found = batches(spool)
    assert held(found) == records(60)
    for batch in reversed(found):
        spool.done(batch)
    assert spool.figures().waiting_bytes == 0
    spool.close()
    assert segments(directory) == []


def test_too_many_batches_at_once_are_a_mistake(directory: Path) -> None:
    spool = opened(directory)
    fill(spool, records(MAX_BEGUN + 1))
    found = batches(spool, 1)
    for batch in found[:MAX_BEGUN]:
        spool.begin(batch)
    with pytest.raises(ValueError, match="begun and not done"):
        spool.begin(found[MAX_BEGUN])
    die(spool)
    spool = opened(directory)
    assert [batch.in_doubt for batch in batches(spool, 1)] == [True] * MAX_BEGUN + [False]
    spool.close()


@pytest.mark.parametrize("closed", [False, True])
def test_after_a_loss_of_power_all_is_in_doubt_unless_the_end_was_orderly(
    directory: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    spool = opened(directory)
    fill(spool, records(30))
    spool.done(batches(spool, 3500)[0])
    spool.close() if closed else die(spool)
    monkeypatch.setattr("collector.spool_cursor._boot_id", lambda: b"another boot id.")
    spool = opened(directory)
    die(spool)
    spool = opened(directory)  # dying again before anything is done does not make it known
    fill(spool, records(3))
    found = batches(spool)
    assert held(found) == records(30)[3:] + records(3)
    assert all(batch.in_doubt != closed for batch in found[:-1])
    assert not found[-1].in_doubt
    spool.close()


@pytest.mark.parametrize("at", [10, 80, 4096 + 10, 4096 + 80], ids=str)
@pytest.mark.parametrize("begun", [2, 3], ids=str)
def test_a_damaged_note_of_progress_puts_more_in_doubt_and_loses_nothing(directory: Path, at: int, begun: int) -> None:
    spool = opened(directory)
    fill(spool, records(30))
    found = batches(spool, 3500)
    for batch in found[:begun]:
        spool.begin(batch)
    spool.done(found[0])
    die(spool)
    noted = bytearray((directory / "cursor").read_bytes())
    noted[at] ^= 0x10
    (directory / "cursor").write_bytes(noted)
    spool = opened(directory)
    again = batches(spool)
    assert all(batch.in_doubt for batch in again)
    assert held(again) in (records(30), records(30)[3:])
    spool.close()


def test_without_a_note_of_progress_all_is_in_doubt(directory: Path) -> None:
    spool = opened(directory)
    fill(spool, records(30))
    die(spool)
    (directory / "cursor").write_bytes(b"")
    spool = opened(directory)
    found = batches(spool)
    assert held(found) == records(30)
    assert all(batch.in_doubt for batch in found)
    spool.close()


def test_files_that_are_written_over_never_give_back_what_they_held(directory: Path) -> None:
    spool = opened(directory)
    fill(spool, records(40))
    drain(spool)
    inodes = {path.stat().st_ino for path in segments(directory)}
    for _ in range(20):
        fill(spool, records(10))
        drain(spool)
    new = [record.swapcase() + b"new" for record in records(3)]
    while len(segments(directory)) < 2:  # until a file has just been begun
        fill(spool, new, 1)
        drain(spool)
        fill(spool, new, 1)
    assert inodes & {path.stat().st_ino for path in segments(directory)}, "no file was written over"
    waiting = spool.figures().waiting_records
    die(spool)
    spool = opened(directory)
    assert drain(spool) == (new * 2)[-waiting:]
    assert spool.figures().losses.torn == 0
    assert spool.figures().losses.damaged_bytes == 0
    spool.close()


def test_a_full_disk_leaves_everything_as_it_was(spool: Spool, directory: Path) -> None:
    fill(spool, records(7))
    with full_disk(), pytest.raises(OSError, match=r"large|space") as refusal:
        spool.append(records(3))
    assert refusal.value.errno in (errno.EFBIG, errno.ENOSPC)
    assert spool.figures().waiting_records == 7
    fill(spool, records(2))
    assert drain(spool) == records(7) + records(2)
    assert spool.figures().losses.damaged_bytes == 0


def test_a_disk_that_is_full_from_the_start(spool: Spool, directory: Path) -> None:
    with full_disk(), pytest.raises(OSError, match=r"large|space"):
        spool.append(records(3))
    fill(spool, records(50))
    assert drain(spool) == records(50)
    assert len(segments(directory)) == 1


def test_room_that_is_to_be_kept_free_is_kept_free(directory: Path) -> None:
    spool = opened(directory, keep_free_bytes=1 << 60)
    with pytest.raises(OSError, match="space"):
        spool.append([b"one"])
    assert spool.figures().waiting_bytes == 0
    spool.close()
    spool = opened(directory, keep_free_bytes=1)
    spool.append([b"one"])
    assert drain(spool) == [b"one"]
    spool.close()


def test_on_a_full_disk_nothing_is_begun_and_what_is_done_is_done(directory: Path) -> None:
    spool = opened(directory)
    fill(spool, records(9))
    first, second, _ = batches(spool, 3500)
    spool.begin(first)
    with full_disk():
        with pytest.raises(OSError, match="large"):
            spool.begin(second)
        spool.done(first)
    assert spool.figures().waiting_records == 6
    die(spool)
    spool = opened(directory)
    assert [batch.in_doubt for batch in batches(spool, 3500)] == [True, False, False]
    spool.close()


def test_appending_and_reading_at_the_same_time(directory: Path) -> None:
    wanted, found = [b"%06d" % number * 20 for number in range(6000)], []
    spool = opened(directory, cache_bytes=20_000, fsync="off")

    def append() -> None:
        for first in range(0, len(wanted), 5):
            while True:
                try:
                    spool.append(wanted[first : first + 5])
                except SpoolFullError:
                    continue
                break

    writer = threading.Thread(target=append)
    writer.start()
    while len(found) < len(wanted):
        found += drain(spool)
    writer.join()
    assert found == wanted
    spool.close()
    assert segments(directory) == []


@pytest.mark.parametrize(("policy", "synced"), [("always", True), ("interval", True), ("off", False)])
def test_sync_syncs_every_file_that_was_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch, policy: str, synced: bool
) -> None:
    spool = opened(directory, fsync=policy)
    files: list[int] = []
    monkeypatch.setattr(spool_module.os, "fsync", files.append)
    fill(spool, records(40))
    end = spool.sync()
    assert len(files) == (len(segments(directory)) + 1) * synced  # and the directory
    assert spool.sync() == end
    assert len(files) == (len(segments(directory)) + 1) * synced
    spool.close()


def test_what_could_not_be_synced_is_said_and_not_written_on_to(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(directory, fsync="always")
    end = spool.append([b"one"])

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as broken:
        broken.setattr(spool_module.os, "fsync", fail)
        with pytest.raises(OSError, match="broken"):
            spool.sync()
    assert spool.append([b"two"]).segment > end.segment
    assert spool.sync().segment > end.segment
    assert drain(spool) == [b"one", b"two"]
    spool.close()


def test_how_old_the_oldest_is(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(directory, cache_bytes=0)
    assert spool.figures().oldest_age_s == 0
    start = 10**18
    for second in range(3):
        monkeypatch.setattr("time.time_ns", lambda now=second: start + now * 10**9)
        spool.append([b"x" * 100])
    first = spool.read(1)
    second = spool.read(1)
    assert first is not None
    assert second is not None
    assert spool.figures().oldest_age_s == 2
    spool.done(second)
    assert spool.figures().oldest_age_s == 2
    spool.done(first)
    assert spool.figures().oldest_age_s == 0
    monkeypatch.setattr("time.time_ns", lambda: start + 5 * 10**9)
    assert spool.figures().oldest_age_s == 3
    die(spool)
    spool = opened(directory)
    assert spool.figures().oldest_age_s == 3
    spool.close()
