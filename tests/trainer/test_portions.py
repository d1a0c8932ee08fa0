"""How many rollouts are asked for at once."""

from itertools import pairwise

import pytest

from trainer.portions import BYTES, FIRST, MOST, Portions, chunks


def taken(portions: Portions, ids: list[str], size: int) -> list[int]:
    """The lengths of the lists, where each id brings `size` bytes."""
    lengths = []
    seen: list[str] = []
    for portion in portions.of(ids):
        lengths.append(len(portion))
        seen += portion
        portions.brought(len(portion), len(portion) * size)
    assert seen == ids
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


def test_chunks_hold_every_id_once_and_no_more_than_fits() -> None:
    ids = [f"{number:04}" for number in range(1_000)]
    found = chunks([*ids, *ids], 500)
    assert [name for chunk in found for name in chunk] == ids
    assert len(found) == 27, "38 of 13 characters each fit, quotes and comma included"
    assert chunks([]) == []
