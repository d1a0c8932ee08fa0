"""The journal gives back what was not settled, once, whatever happened to its files and to its process."""

import os
import random
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from full_disk import full_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar import journal as module
from sidecar.journal import TURN_BYTES, Journal, Place, Span
from sidecar.journal_recovery import ID_BYTES, Recovered, recover
from sidecar.spool import Spool
from sidecar.spool_segment import HEAD, Segment
from tracegrad.otlp_span import encoded_span

LIMIT = 8 << 20
UNPROVED, PROVED = b"\x4a\x03one", b"\x4a\x05other"


class Process:
    """A journal and a spool as a process has them: it may die."""

    def __init__(self, root: Path, limit: int = LIMIT) -> None:
        self.spool = Spool(root, limit_bytes=64 << 20)
        self.spool.open()
        self.spool.adopt()
        self.journal = Journal(lambda: self.spool.directory, limit)

    def write(self, *spans: bytes) -> list[Place | None]:
        """Each one a call of its own."""
        return self.journal.write([[(span, UNPROVED)] for span in spans], [])

    def settle(self, *places: Place | None) -> None:
        self.journal.write([], [place for place in places if place is not None])

    def die(self) -> None:
        """What the kernel does: files are closed, and nothing else happens."""
        for file in self.journal._files:
            os.close(file.fd)
        assert self.spool._slot is not None
        self.spool._slot.release()
        for segment in self.spool._segments:
            segment.close()

    async def drain(self) -> list[bytes]:
        """All that the spool holds, acknowledged."""
        found = []
        while (batch := await self.spool.take(1 << 20)) is not None:
            found += [bytes(record) for record in batch.records]
            self.spool.acknowledge(batch)
        return found


def bare(size: int = 1000) -> bytes:
    return encoded_span(
        "chat",
        secrets.token_bytes(16),
        secrets.token_bytes(8),
        parent_span_id=b"",
        kind=2,
        start_ns=1,
        end_ns=2,
        values={"text": secrets.token_hex(size // 2)},
        error=None,
    )


def unproved(*spans: bytes) -> list[bytes]:
    return [span + UNPROVED for span in spans]


def files(root: Path, kind: str = "journal") -> list[Path]:
    return sorted(root.glob(f"*/*.{kind}"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def process(root: Path) -> Iterator[Process]:
    started = Process(root)
    yield started
    started.journal.close()
    started.spool.close()


async def test_what_was_not_settled_comes_after_a_death_as_unproved_and_nothing_else(root: Path) -> None:
    first = Process(root)
    spans = [bare() for _ in range(40)]
    places = first.write(*spans[:20]) + first.write(*spans[20:])
    first.settle(*places[::2])
    first.die()
    second = Process(root)
    assert await second.drain() == unproved(*spans[1::2])
    assert (second.spool.recovered, second.spool.adopted, second.spool.torn) == (20, 20, 0)
    assert files(root) == []
    second.die()
    third = Process(root)
    assert await third.drain() == []
    third.spool.close()


async def test_all_spans_of_a_call_come_or_none(root: Path) -> None:
    first = Process(root)
    calls: list[list[Span]] = [[(bare(), UNPROVED), (bare(), UNPROVED), (bare(), b"")] for _ in range(3)]
    places = first.journal.write(calls, [])
    first.settle(places[1])
    first.die()
    second = Process(root)
    assert await second.drain() == [span + verdict for call in (calls[0], calls[2]) for span, verdict in call]
    second.spool.close()


async def test_files_are_written_over_for_ever_and_never_give_back_what_was_settled(root: Path) -> None:
    first = Process(root)
    standing: list[tuple[bytes, Place | None]] = []
    inodes = set()
    for _ in range(400):
        spans = [bare(9000) for _ in range(3)]
        settled = [place for _, place in standing[:-20] if place is not None]
        places = first.journal.write([[(span, UNPROVED)] for span in spans], settled)
        standing = standing[-20:] + list(zip(spans, places, strict=True))
        inodes |= {path.stat().st_ino for path in files(root)}
    assert len(inodes) == 2
    assert first.journal.skipped == 0
    assert sum(path.stat().st_size for path in files(root)) < 2 * TURN_BYTES + 100_000 < 400 * 3 * 9000
    first.die()
    second = Process(root)
    assert await second.drain() == unproved(*(span for span, _ in standing))
    assert second.spool.torn == 0
    second.spool.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_whatever_is_written_and_settled_in_whatever_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(module, "TURN_BYTES", 4000)
    chance, root = random.Random(seed), tmp_path / "any"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    one = Journal(lambda: root, 40_000)
    standing: dict[Place, list[bytes]] = {}
    for _ in range(chance.randint(1, 40)):
        gone = chance.sample(sorted(standing, key=id), chance.randint(0, len(standing)))
        calls = [
            [bare(chance.randint(2, 900)) for _ in range(chance.randint(1, 3))] for _ in range(chance.randint(0, 4))
        ]
        places = one.write([[(span, UNPROVED) for span in spans] for spans in calls], gone)
        for place in gone:
            del standing[place]
        standing |= {place: spans for place, spans in zip(places, calls, strict=True) if place is not None}
        assert one.calls == len(standing)
    assert recover(root, tmp_path) == Recovered(sum(map(len, standing.values())), 0)
    found = {bytes(record) for path in root.glob("*.segment") for record in _records(path)}
    assert found == {span + UNPROVED for spans in standing.values() for span in spans}


def _records(path: Path) -> list[memoryview]:
    scan = Segment.inherit(path).scan()
    return [scan.data[start:stop] for start, stop in scan.extents]


@pytest.mark.parametrize("kept", [1, HEAD - 1, HEAD, HEAD + 1, HEAD + 500, HEAD + 999])
async def test_a_torn_tail_is_recognised_set_aside_and_counted(root: Path, kept: int) -> None:
    first = Process(root)
    spans = [bare() for _ in range(5)]
    places = first.write(*spans)
    first.die()
    path = next(path for path in files(root) if path.stat().st_size > 1000)
    assert places[-1] is not None
    os.truncate(path, places[-1].offsets[0] + kept)
    second = Process(root)
    assert await second.drain() == unproved(*spans[:4])
    assert (second.spool.recovered, second.spool.torn) == (4, 1)
    assert [one.name for one in (root / "aside").iterdir()] == [path.name]
    second.spool.close()


@pytest.mark.parametrize("content", [b"", b"TGJ", b"\0" * 100, os.urandom(5000)])
async def test_a_file_that_is_no_journal_costs_nothing_else(root: Path, content: bytes) -> None:
    first = Process(root)
    span = bare()
    first.write(span)
    first.die()
    (root / "0" / "1.journal").write_bytes(content)
    second = Process(root)
    assert await second.drain() == unproved(span)
    assert second.spool.torn == (content != b"")
    second.spool.close()


async def test_a_call_that_is_in_the_spool_already_does_not_come_back(root: Path) -> None:
    """Its process died between the two writes."""
    first = Process(root)
    spans = [bare(100_000) for _ in range(90)]  # the spool's file changes twice
    first.write(*spans[:30])
    for span in spans:
        first.spool.append(span + PROVED)
    first.write(*spans[30:])
    first.die()
    second = Process(root)
    assert await second.drain() == [span + PROVED for span in spans]
    assert second.spool.recovered == 0
    second.spool.close()


async def test_a_call_that_is_half_in_the_spool_comes_back(root: Path) -> None:
    first = Process(root)
    spans = [bare() for _ in range(3)]
    first.write(*spans)
    for span in spans[:2]:
        first.spool.append(span + PROVED)
    first.die()
    (path,) = files(root, "segment")
    os.truncate(path, path.stat().st_size - 100)
    second = Process(root)
    assert await second.drain() == [spans[0] + PROVED, *unproved(*spans[1:])]
    assert (second.spool.recovered, second.spool.torn) == (2, 1)
    second.spool.close()


async def test_a_recovery_that_breaks_off_loses_and_doubles_nothing(root: Path) -> None:
    first = Process(root)
    spans = [bare() for _ in range(30)]
    first.write(*spans)
    first.die()
    spool = Spool(root, limit_bytes=64 << 20)
    with full_disk(), pytest.raises(OSError, match="No space left"):
        spool.open()
    assert spool.directory is None
    shutil.copytree(root / "0", root / "copy")
    recover(root / "0", root)
    for path in (root / "copy").glob("*.journal"):  # it died before it could delete them
        path.rename(root / "0" / path.name)
    second = Process(root)
    assert await second.drain() == unproved(*spans)
    second.spool.close()


async def test_the_living_take_over_what_the_dead_left(root: Path) -> None:
    first, second = Process(root), Process(root)
    spans, own = [bare() for _ in range(5)], bare()
    first.write(*spans)
    second.write(own)
    second.spool.adopt()
    assert await second.drain() == [], "nobody is dead"
    first.die()
    second.spool.adopt()
    assert await second.drain() == unproved(*spans)
    assert [path.parent.name for path in files(root)] == ["1", "1"]
    second.die()
    third = Process(root)
    assert await third.drain() == unproved(own)
    third.spool.close()


async def test_it_is_bounded_and_takes_more_once_there_is_room(root: Path, process: Process) -> None:
    one = Journal(lambda: process.spool.directory, 100_000)
    places = one.write([[(bare(1000), UNPROVED)] for _ in range(200)], [])
    taken = [place for place in places if place is not None]
    assert 80 < len(taken) < 100
    assert one.skipped == 200 - len(taken)
    assert sum(path.stat().st_size for path in files(root)) <= 100_000 + 100
    one.write([], taken)
    assert None not in one.write([[(bare(1000), UNPROVED)] for _ in range(40)], [])
    assert one.write([[(bare(60_000), UNPROVED)]], []) == [None], "larger than a file may be"


async def test_with_the_disk_full_nothing_is_taken_and_nothing_settled_comes_back(
    root: Path, process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0)
    places = process.write(*(bare() for _ in range(3)))
    with full_disk():
        process.settle(places[0])
        assert files(root) == []
        assert process.write(bare(), bare()) == [None, None]
    process.settle(*places[1:])  # of files that are gone
    assert process.journal.skipped == 2
    span = bare()
    assert process.write(span) != [None]
    assert process.journal.calls == 1
    said = [one for one in caplog.messages if one.startswith("journal")]
    assert len(said) == 1
    assert said[0].startswith("journal cannot be written, calls wait for their engine in memory alone error=")
    process.die()
    second = Process(root)
    assert await second.drain() == unproved(span)
    second.die()
    process.spool._slot = None


async def test_a_journal_that_is_settled_leaves_no_file(root: Path, process: Process) -> None:
    process.settle(*process.write(bare()))
    assert len(files(root)) == 2
    process.journal.close()
    assert files(root) == []


def test_spans_begin_with_their_ids() -> None:
    spans = [bare(10) for _ in range(100)]
    assert len({span[:ID_BYTES] for span in spans}) == 100
    assert len({span[:2] for span in spans}) == 1
