"""What is damaged is set aside, counted and logged; what is whole is delivered, once, from every file there can be."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spooled import LIMIT, SEGMENT, batches, die, drain, fill, held, opened, records, segments

from collector import spool_segment
from collector.spool_aside import Aside
from collector.spool_segment import HEAD, Reader, Segment, number_of


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "traces"


def left(directory: Path, wanted: list[bytes]) -> Path:
    """The file of a process that appended these and died."""
    spool = opened(directory)
    fill(spool, wanted)
    die(spool)
    (path,) = segments(directory)
    return path


def test_a_file_cut_anywhere_gives_what_is_whole(directory: Path) -> None:
    wanted = [b"one", b"a second", b"the third request"]
    path = left(directory, wanted)
    whole = path.read_bytes()
    ends = [0]
    for one in wanted:
        ends.append(ends[-1] + HEAD + len(one))
    for length in range(len(whole)):
        shutil.rmtree(directory)
        directory.mkdir()
        path.write_bytes(whole[:length])
        spool = opened(directory)
        number = sum(end <= length for end in ends) - 1
        assert drain(spool) == wanted[:number], length
        torn = length > ends[number] and any(whole[ends[number] : length])
        assert spool.figures().losses.torn == torn, length
        assert spool.figures().losses.damaged_records == 0
        assert spool.figures().waiting_bytes == 0
        assert len(list(directory.glob("damaged/*"))) == torn
        fill(spool, wanted)
        assert drain(spool) == wanted
        spool.close()


@pytest.mark.parametrize("latest", [True, False])
def test_a_file_with_any_byte_wrong_gives_the_others_and_says_so(
    directory: Path, latest: bool, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [b"one", b"a second", b"the third request"]
    path = left(directory, wanted)
    whole = path.read_bytes()
    if not latest:
        later = Segment.create(directory, 2)
        later.append([b"later"], 1)
        later.close()
        later_bytes = later.path.read_bytes()
    for at in range(len(whole)):
        shutil.rmtree(directory)
        directory.mkdir()
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        if not latest:
            (directory / later.path.name).write_bytes(later_bytes)
        caplog.clear()
        spool = opened(directory)
        found = drain(spool)
        losses = spool.figures().losses
        assert spool.figures().waiting_bytes == 0
        expected = wanted if latest else [*wanted, b"later"]
        missing = [one for one in expected if one not in found]
        assert found == [one for one in expected if one in found]
        if at < len(whole) - 4:
            assert len(missing) == 1
            assert losses.damaged_records + losses.torn == 1
        else:
            assert missing == []
        reports = [entry for entry in caplog.records if entry.levelname in ("ERROR", "WARNING")]
        assert len(reports) == 1
        assert len(list(directory.glob("damaged/*"))) == 1
        spool.close()
        assert segments(directory) == []


def test_a_stretch_lost_in_the_middle_costs_what_was_in_it(directory: Path) -> None:
    wanted = records(12)
    path = left(directory, wanted)
    whole, size = path.read_bytes(), HEAD + len(wanted[0])
    hole = 3 * size + 10, 6 * size + 10
    path.write_bytes(whole[: hole[0]] + bytes(hole[1] - hole[0]) + whole[hole[1] :])
    spool = opened(directory)
    assert drain(spool) == wanted[:3] + wanted[7:]
    losses = spool.figures().losses
    assert losses.damaged_bytes == 4 * size
    assert (losses.torn, losses.damaged_segments) == (0, 0)
    spool.close()


def test_zeros_between_records_are_damage_and_zeros_at_the_end_are_not(directory: Path) -> None:
    wanted = records(12)
    path = left(directory, wanted)
    whole, size = path.read_bytes(), HEAD + len(wanted[0])
    at = 3 * size
    path.write_bytes(whole[:at] + bytes(2 * size) + whole[at + 2 * size :] + bytes(5000))
    spool = opened(directory)
    assert drain(spool) == wanted[:3] + wanted[5:]
    losses = spool.figures().losses
    assert (losses.damaged_bytes, losses.damaged_records, losses.torn) == (2 * size, 1, 0)
    spool.close()


def test_what_was_begun_and_is_damaged_since_is_still_in_doubt(directory: Path) -> None:
    spool = opened(directory)
    wanted = records(9)
    fill(spool, wanted)
    begun = spool.read(6000)
    assert begun is not None
    assert len(begun.records) == 6
    spool.begin(begun)
    die(spool)
    (path,) = segments(directory)
    content = bytearray(path.read_bytes())
    content[2 * (HEAD + len(wanted[0])) + HEAD] ^= 1
    path.write_bytes(content)
    spool = opened(directory)
    found = batches(spool)
    assert held(found) == wanted[:2] + wanted[3:]
    assert [len(batch.records) for batch in found if batch.in_doubt] == [2, 3]
    for batch in found:
        spool.done(batch)
    spool.close()
    assert segments(directory) == []


def test_foreign_and_unreadable_files_do_not_stop_the_start(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = left(directory, records(5))
    (directory / "notes.txt").write_text("mine")
    (directory / "old.segment").write_text("whose?")
    name = "{:016d}-0123456789abcdef.segment"
    (directory / f"{1:016d}-ffffffffffffffff.segment").write_bytes(b"a second first")
    (directory / name.format(7)).write_bytes(b"not a segment at all")
    (directory / name.format(8)).mkdir()
    (directory / name.format(9)).write_bytes(path.read_bytes())
    (directory / name.format(10)).write_bytes(b"")
    (directory / name.format(11)).symlink_to(directory / "nothing")
    (directory / name.format(12)).write_bytes(b"the last one")
    spool = opened(directory)
    assert drain(spool) == records(5)
    fill(spool, records(5))
    assert drain(spool) == records(5)
    losses = spool.figures().losses
    assert (losses.damaged_segments, losses.damaged_records, losses.torn) == (5, 0, 1)
    assert len(list(directory.glob("damaged/*"))) == 6
    assert caplog.text.count("spool damaged") == 5
    assert (directory / "notes.txt").read_text() == "mine"
    assert (directory / "old.segment").read_text() == "whose?"
    spool.close()


def test_a_disk_that_cannot_be_read_costs_the_rest_of_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(directory, cache_bytes=0)
    wanted = records(40)
    fill(spool, wanted)
    names = [path.name for path in segments(directory)]
    read = Reader.read

    def fail(self: Reader, at: int, stop: int, limit: int) -> tuple[list[memoryview], int, int]:
        if number_of(self.path) == 2 and at > 0:
            raise OSError(errno.EIO, "the disk is broken")
        return read(self, at, stop, limit)

    monkeypatch.setattr(Reader, "read", fail)
    found = drain(spool)
    assert found == wanted[:19] + wanted[30:]
    losses = spool.figures().losses
    assert losses.damaged_segments == 1
    assert spool.figures().waiting_bytes == 0
    (kept,) = directory.glob("damaged/*")
    assert kept.name.endswith(names[1])
    spool.close()


def test_a_lack_of_descriptors_is_no_damage(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(directory, records(5))
    spool = opened(directory)

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as lacking:
        lacking.setattr(Segment, "reader", fail)
        with pytest.raises(OSError, match="too many"):
            spool.read(100)
    assert drain(spool) == records(5)
    spool.close()


def test_a_file_that_someone_deleted_is_counted(directory: Path) -> None:
    spool = opened(directory, cache_bytes=0)
    fill(spool, records(40))
    die(spool)
    gone = segments(directory)[1]
    spool = opened(directory)
    gone.unlink()
    assert drain(spool) == records(40)[:15] + records(40)[30:]
    assert spool.figures().losses.damaged_segments == 1
    spool.close()


def test_a_request_that_holds_records_is_not_taken_apart(directory: Path) -> None:
    path = left(directory, [b"inner one", b"inner two"])
    forged = path.read_bytes()
    shutil.rmtree(directory)
    path = left(directory, [b"before", forged * 20, b"after"])
    content = bytearray(path.read_bytes())
    content[HEAD + 6 + 1] ^= 1  # the head of the second record: only looking for marks finds the third
    path.write_bytes(content)
    spool = opened(directory)
    assert drain(spool) == [b"before", b"after"]
    spool.close()


def test_refused_requests_are_kept_once(directory: Path) -> None:
    spool = opened(directory)
    spool.append([b"poison", b"good"])
    (batch,) = batches(spool)
    for _ in range(2):
        spool.reject(batch.records[0], "Code: 33. DB::Exception: no")
    spool.done(batch)
    (kept,) = directory.glob("refused/*")
    assert kept.read_bytes() == b"poison"
    losses = spool.figures().losses
    assert (losses.refused_records, losses.refused_bytes) == (1, 6)
    spool.close()


def test_what_is_set_aside_is_bounded_and_the_oldest_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    aside = Aside(tmp_path, 2500)
    for number in range(5):
        aside.refuse(b"%d" % number * 1000, "no")
        (kept,) = [path for path in tmp_path.glob("refused/*") if path.read_bytes().startswith(b"%d" % number)]
        os.utime(kept, ns=(number, number))
    assert sorted(path.read_bytes()[:1] for path in tmp_path.glob("refused/*")) == [b"3", b"4"]
    assert aside.losses.refused_records == 5
    assert caplog.text.count("deleted") == 3


Damage = Callable[[bytearray, random.Random], None]


def flip(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content))
    content[at] ^= 1 << chance.randrange(8)


def zero(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content))
    stop = min(len(content), at + chance.randrange(1, 3000))
    content[at:stop] = bytes(stop - at)


def shorten(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


def insert(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content))
    content[at:at] = chance.randbytes(chance.randrange(1, 50))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 6000), min_size=1, max_size=40),
    damages=st.lists(st.sampled_from([flip, zero, shorten, insert]), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_any_damage_costs_only_what_it_touches(
    tmp_path: Path, sizes: list[int], damages: list[Damage], seed: int
) -> None:
    directory = tmp_path / str(seed)
    shutil.rmtree(directory, ignore_errors=True)
    chance = random.Random(seed)
    wanted = [b"%d." % number + chance.randbytes(size) for number, size in enumerate(sizes)]
    spool = opened(directory)
    fill(spool, wanted, 2)
    die(spool)
    path = chance.choice(segments(directory))
    content = bytearray(path.read_bytes())
    for damage in damages:
        if content:
            damage(content, chance)
    path.write_bytes(content)
    for _ in range(2):  # also when nothing is done the first time
        spool = opened(directory)
        found = held(batches(spool))
        assert found == [one for one in wanted if one in found]
        others = [one for number, one in enumerate(wanted) if where(wanted, number) != number_of(path)]
        assert set(others) <= set(found)
        die(spool)
    spool = opened(directory)
    assert drain(spool) == found
    assert spool.figures().waiting_bytes == 0
    spool.close()
    assert segments(directory) == []


def where(wanted: list[bytes], number: int) -> int:
    """The number of the file that holds the request: as the spool fills its files, in groups of two."""
    segment, end = 1, 0
    for first in range(0, len(wanted), 2):
        size = sum(HEAD + len(one) for one in wanted[first : first + 2])
        if end + size > SEGMENT and end:
            segment, end = segment + 1, 0
        end += size
        if number in (first, first + 1):
            break
    return segment


class Model:
    """What the spool must hold, as lists, with a store that takes batches wholly or in part."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.stored: list[bytes] = []
        self.maybe: set[bytes] = set()


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.lists(st.integers(0, 5000), min_size=1, max_size=6)),
            st.tuples(st.just("store"), st.integers(1, 9000)),
            st.tuples(st.just("half"), st.integers(1, 9000)),
            st.tuples(st.just("die"), st.integers(0, 200)),
            st.tuples(st.just("close"), st.none()),
            st.tuples(st.just("sync"), st.none()),
        ),
        max_size=40,
    ),
    cache=st.sampled_from([0, 4000, LIMIT]),
)
def test_every_request_is_stored_once_whenever_the_process_dies(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]], cache: int
) -> None:
    """A store that checks what is in doubt, and only that, ends up with every request once."""
    directory = tmp_path_factory.mktemp("spool")
    spool = opened(directory, cache_bytes=cache)
    model, number = Model(), 0
    for step, argument in steps:
        if step == "append":
            assert isinstance(argument, list)
            bodies = [b"%d." % (number + index) + b"x" * size for index, size in enumerate(argument)]
            number += len(bodies)
            spool.append(bodies)
            model.appended += bodies
        elif step in ("store", "half"):
            assert isinstance(argument, int)
            batch = spool.read(argument)
            if batch is None:
                continue
            spool.begin(batch)
            new = [bytes(one) for one in batch.records if not batch.in_doubt or bytes(one) not in model.stored]
            if step == "store":
                model.stored += new
                spool.done(batch)
            else:  # the process dies while the store takes it
                model.stored += new[: len(new) // 2]
                die(spool)
                spool = opened(directory, cache_bytes=cache)
        elif step == "die":
            assert isinstance(argument, int)
            torn = spool._files._current
            die(spool)
            if torn is not None and argument:  # in the middle of an append
                with torn.path.open("r+b") as file:
                    file.seek(torn.end)
                    file.write((spool_segment.MARK + b"y" * 200)[:argument])
            spool = opened(directory, cache_bytes=cache)
        elif step == "close":
            spool.close()
            spool = opened(directory, cache_bytes=cache)
        else:
            spool.sync()
        waiting = sum(len(one) + HEAD for one in model.appended) - sum(len(one) + HEAD for one in model.stored)
        assert spool.figures().waiting_bytes >= waiting
    while (batch := spool.read(5000)) is not None:
        model.stored += [bytes(one) for one in batch.records if not batch.in_doubt or bytes(one) not in model.stored]
        spool.done(batch)
    assert model.stored == model.appended
    assert spool.figures().waiting_bytes == 0
    assert spool.figures().losses.damaged_bytes == 0
    spool.close()
    assert segments(directory) == []
