"""Files are closed while others are at work on them: nothing is lost by it, and no descriptor stays open."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from spooled import SEGMENT, drain, fill, opened, records, segments

from collector import spool_files, spool_segment


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "traces"


@pytest.mark.parametrize("policy", ["interval", "off"])
def test_a_file_that_is_closed_while_it_is_read_is_read_all_the_same(
    directory: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    spool = opened(directory, cache_bytes=0, fsync=policy)
    fill(spool, records(3))
    pread = os.pread

    def late(fd: int, size: int, at: int) -> bytes:
        """Before the reader gets to it: the file is sealed, synced and closed, and another file is opened."""
        monkeypatch.setattr(spool_segment.os, "pread", pread)
        spool.append([b"x" * SEGMENT])
        spool.sync()
        with Path(os.devnull).open():
            return pread(fd, size, at)

    monkeypatch.setattr(spool_segment.os, "pread", late)
    assert drain(spool) == [*records(3), b"x" * SEGMENT]
    spool.close()


@pytest.mark.parametrize("policy", ["interval", "off"])
def test_files_that_are_often_closed_while_they_are_read(directory: Path, policy: str) -> None:
    spool = opened(directory, segment_bytes=4 << 10, cache_bytes=0, fsync=policy)
    open_files = len(descriptors())
    wanted, found, ended = records(6000, 500), [], threading.Event()

    def append() -> None:
        for record in wanted:
            while spool.figures().waiting_bytes > 8 << 10 and not ended.is_set():
                time.sleep(0)
            spool.append([record])

    def sync() -> None:
        while not ended.is_set():
            spool.sync()
            time.sleep(0)

    threads = [threading.Thread(target=append), threading.Thread(target=sync)]
    for thread in threads:
        thread.start()
    while len(found) < len(wanted) and not spool.figures().losses.damaged_bytes:
        found += drain(spool)
    ended.set()
    for thread in threads:
        thread.join()
    assert found == wanted
    assert len(descriptors()) <= open_files + 2
    spool.close()


def descriptors() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


def test_a_sync_without_descriptors_leaves_none_open_and_the_next_makes_up_for_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(directory, fsync="always")
    fill(spool, records(40))
    open_files, dup, given, synced = len(descriptors()), os.dup, [], []

    def lack(fd: int) -> int:
        if given:
            raise OSError(errno.EMFILE, "too many open files")
        given.append(dup(fd))
        return given[0]

    with monkeypatch.context() as lacking:
        lacking.setattr(spool_files.os, "dup", lack)
        with pytest.raises(OSError, match="too many"):
            spool.sync()
    assert len(descriptors()) == open_files
    monkeypatch.setattr(spool_files.os, "fsync", synced.append)
    spool.sync()
    assert len(synced) == len(segments(directory)) + 1
    spool.close()


def test_what_is_acknowledged_does_not_wait_for_a_file_that_was_lost(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(directory, fsync="always", cache_bytes=0)
    end = spool.append([b"one"])

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as broken:
        broken.setattr(spool_segment.os, "pread", fail)
        assert drain(spool) == []
    assert spool.figures().losses.damaged_segments == 1
    assert spool.sync() >= end
    spool.close()
