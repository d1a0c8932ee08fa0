"""How many rollouts are asked for at once."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tracegrad.errors import TooLargeError
from trainer.portions import BYTES, FIRST, MOST, Portions, chunks


def taken(portions: Portions, ids: list[str], size: int, most: int = 5_000) -> list[int]:
    """The lengths of the lists, where each id brings `size` bytes, and no more than `most` are answered."""
    lengths = []

    def ask(some: Sequence[str]) -> tuple[Sequence[str], int]:
        lengths.append(len(some))
        if len(some) > most:
            raise TooLargeError("too many")
        return some, len(some) * size

    assert [name for some in portions.read(ids, ask) for name in some] == ids
    return lengths


@pytest.mark.parametrize("size", [1, BYTES // 300, BYTES // 10, 3 * BYTES])
def test_answers_become_as_large_as_they_may_be(size: int) -> None:
    lengths = taken(Portions(), [f"{number}" for number in range(5_000)], size)
    allowed = max(1, min(MOST, BYTES // size))
    assert lengths[0] == FIRST
    assert max(lengths[1:]) == allowed, "no more than may be, and not less for long"
    assert all(later <= 4 * earlier for earlier, later in pairwise(lengths))


def test_what_was_learned_of_answers_is_kept() -> None:
    portions = Portions()
    taken(portions, [f"{number}" for number in range(FIRST)], BYTES // 10)
    assert taken(portions, [f"{number}" for number in range(20)], BYTES // 10) == [10, 10]


def test_an_empty_answer_says_nothing_against_more() -> None:
    portions = Portions()
    assert taken(portions, [f"{number}" for number in range(400)], 0) == [FIRST, 4 * FIRST, 400 - 5 * FIRST]


def test_where_the_store_lacks_memory_it_is_asked_for_less_from_then_on() -> None:
    portions = Portions()
    ids = [f"{number}" for number in range(200)]
    assert taken(portions, ids, 1, most=20) == [64, 32, *[16] * 12, 8]
    assert taken(portions, ids[:40], 1, most=20) == [16, 16, 8]


def test_what_is_too_much_for_one_is_an_error() -> None:
    asked: list[int] = []

    def refuse(some: Sequence[str]) -> tuple[None, int]:
        asked.append(len(some))
        raise TooLargeError("too many")

    with pytest.raises(TooLargeError):
        list(Portions().read(["a", "b", "c"], refuse))
    assert asked == [3, 1]


def test_chunks_hold_every_id_once_and_no_more_than_fits() -> None:
    ids = [f"{number:04}" for number in range(1_000)]
    found = chunks([*ids, *ids], 500)
    assert [name for chunk in found for name in chunk] == ids
    assert len(found) == 27, "38 of 13 characters each fit, quotes and comma included"
    assert chunks([]) == []
