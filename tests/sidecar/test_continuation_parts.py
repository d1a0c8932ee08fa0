"""The memory of turns, and where a bridge begins."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.continuation.bridge import bridge
from sidecar.continuation.memory import Memory, Turn


def test_memory_is_bounded_by_rollouts_that_were_quiet_longest() -> None:
    memory = Memory(limit_bytes=5_000)
    turns: list[Turn] = []
    for number in range(40):
        turn = Turn(turns[-1] if turns else None, "1,2,3", "4,5", broken_off=False, thinking={})
        turns.append(turn)
        memory.add(("", "long" if number < 5 else f"r{number}", 0), bytes([number]), b"", turn)
        assert memory.size <= 5_000
        assert number >= 9 or memory.find(("", "long", 0), b"\0", b"") is turns[0]
    assert ("", "long", 0) not in memory
    assert memory.find(("", "r39", 0), bytes([39]), b"") is turns[39]
    assert turns[2].tokens == ",".join(["1,2,3,4,5"] * 3)
    assert (turns[2].last, turns[2].sampled) == (5, 2)


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3)))
def test_the_bridge_begins_where_the_answer_ends(one: list[int], other: list[int], after: list[int]) -> None:
    end = 9
    rendered = [1, end, 2, *one, 7, end, *after]
    changed = [1, end, 2, *other, 8, end, *after]
    assert bridge(rendered, changed, end, turns=1, closed=True) == after
    assert bridge(rendered, changed, end, turns=1, closed=False) == [end, *after]
    assert bridge(rendered, changed, end, turns=2, closed=True) is None
    assert bridge(rendered, changed, 6, turns=0, closed=True) is None
