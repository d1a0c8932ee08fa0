"""Packing: every response is trained once, after exactly its prompt, whatever the calls share."""

import math

import numpy as np
import pytest
from call_trees import call_trees, piece, responses, seen_from
from hypothesis import given
from hypothesis import strategies as st

from trainer.packing import Piece, Room, merged, one_by_one
from trainer.prefix_forest import prefix_forest
from trainer.rows import Row

O1, A1, O2, A2, O3, A3 = [1, 2], [3], [4, 5], [6, 7], [8], [9]


def merge(*calls: tuple[list[int], list[int]], most: int = 1000, branches: bool = True) -> list[Row]:
    rows, _ = merged(
        [piece(prompt, response, number) for number, (prompt, response) in enumerate(calls)], Room(most, branches)
    )
    return rows


def shown(rows: list[Row]) -> list[tuple[list[int], list[int]]]:
    """Tokens, and those that are trained."""
    return [(row.token_ids.tolist(), row.token_ids[row.mask].tolist()) for row in rows]


def test_worked_example_5_two_rows() -> None:
    """Prompts (O1), (O1 A1 O2), (O3): [O1 A1 O2 A2] with mask on A1, A2, and [O3 A3]."""
    first, second = merge((O1, A1), (O1 + A1 + O2, A2), (O3, A3))
    assert first.token_ids.tolist() == O1 + A1 + O2 + A2
    assert first.mask.tolist() == [False] * 2 + [True] * 1 + [False] * 2 + [True] * 2
    assert second.token_ids.tolist() == O3 + A3
    assert second.mask.tolist() == [False, True]
    assert (first.samples, second.samples) == ((0, 1), (2,))
    assert first.branches is None
    assert second.branches is None


def test_order_does_not_matter_for_a_chain() -> None:
    assert shown(merge((O1 + A1 + O2, A2), (O1, A1))) == [(O1 + A1 + O2 + A2, A1 + A2)]


def test_choices_of_one_request_share_their_prompt() -> None:
    """n = 2: each choice is a branch, also where both say the same."""
    (row,) = merge((O1, A1), (O1, A1))
    assert row.token_ids.tolist() == [*O1, *A1, O1[-1], *A1]
    assert row.mask.tolist() == [False, False, True, False, True]
    assert row.branches is not None
    assert row.branches.positions.tolist() == [0, 1, 2, 1, 2]
    assert [seen_from(row, token) for token in range(5)] == [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4]]
    assert row.weights[2] != row.weights[4]


def test_a_prompt_of_one_token_is_shared_where_attention_costs_nothing() -> None:
    (row,) = merge(([5], A1), ([5], A2))
    assert row.token_ids.tolist() == [5, *A1, 5, *A2]


def test_two_agents_go_on_from_one_call() -> None:
    whole = O1 + A1
    (row,) = merge((O1, A1), (whole + O2, A2), (whole + O3, A3), (whole + O2 + A2 + O3, A1))
    assert row.token_ids.tolist() == [*whole, *O2, *A2, *O3, *A1, A1[-1], *O3, *A3]
    assert row.samples == (0, 1, 3, 2)


def test_a_dropped_call_in_the_middle_is_context() -> None:
    history = O1 + A1 + O2 + A2 + O3
    assert shown(merge((O1, A1), (history, A3))) == [(history + A3, A1 + A3)]


def test_without_branches_only_chains_are_merged() -> None:
    rows = merge((O1, A1), (O1, A2), (O1 + A1 + O2, A2), (O1 + A1 + O3, A3), branches=False)
    assert shown(rows) == [
        (O1 + A1 + O2 + A2, A1 + A2),
        (O1 + A1 + O3 + A3, A3),
        (O1 + A2, A2),
    ]
    assert all(row.branches is None for row in rows)


def test_a_row_that_would_be_too_long_leaves_the_rest_to_another() -> None:
    whole = O1 + A1 + O2 + A2
    rows = merge((O1, A1), (O1 + A1 + O2, A2), (whole + O3, A3), (whole + O3 + A3 + O3, A1), most=7)
    assert shown(rows) == [(whole, A1 + A2), (whole + O3 + A3, A3), (whole + O3 + A3 + O3 + A1, A1)]


def test_a_tree_is_merged_where_that_is_cheaper() -> None:
    """Eight answers to one prompt: of 1000 tokens with answers of 10, then of 10 with answers of 1000."""
    for n_prompt, n_response, n_rows in ((1000, 10, 1), (10, 1000, 8)):
        calls = [piece([1] * n_prompt, [2] * n_response, number) for number in range(8)]
        assert len(merged(calls, Room(10_000, token_cost=500.0))[0]) == n_rows
        assert len(merged(calls, Room(10_000))[0]) == 1
        assert len(merged(calls, Room(10_000, branches=False))[0]) == 8


@given(call_trees(), st.sampled_from([0.0, 2.0, 20.0]))
def test_merged_rows_never_cost_more(pieces: list[Piece], token_cost: float) -> None:
    def cost(rows: list[Row]) -> float:
        sizes = [(len(row.token_ids), 0.5 if row.branches is None else 1.0) for row in rows]
        return sum(size * token_cost + share * size**2 for size, share in sizes)

    rows, _ = merged(pieces, Room(1000, token_cost=token_cost))
    assert cost(rows) <= cost(one_by_one(pieces))


def test_calls_of_other_rollouts_share_nothing() -> None:
    rows, _ = merged([piece(O1, A1, 0, "r1"), piece(O1 + A1 + O2, A2, 1, "r2")], Room(100))
    assert len(rows) == 2


def test_a_run_of_thousands_of_calls_is_one_row() -> None:
    calls = [([7] * (2 * turn + 1), [7]) for turn in range(1200)]
    (row,) = merge(*calls, most=10_000)
    assert len(row.token_ids) == 2400
    assert row.n_trained == 1200


@given(call_trees(), st.integers(4, 40), st.booleans(), st.sampled_from([0.0, 5.0, math.inf]))
def test_every_response_is_trained_once_after_its_prompt(
    pieces: list[Piece], most: int, branches: bool, token_cost: float
) -> None:
    rows, _ = merged(pieces, Room(most, branches, token_cost))
    assert sorted(number for row in rows for number in row.samples) == list(range(len(pieces)))
    for row in rows:
        assert len(row.token_ids) <= most or len(row.samples) == 1
        assert branches or row.branches is None
        assert len({pieces[number].key for number in row.samples}) == 1
        positions = np.arange(len(row.token_ids)) if row.branches is None else row.branches.positions
        for number, tokens in responses(row, pieces).items():
            of = pieces[number]
            whole = [*of.prompt_token_ids.tolist(), *of.response_token_ids.tolist()]
            seen = seen_from(row, tokens[-1])
            assert row.token_ids[seen].tolist() == whole
            assert positions[seen].tolist() == list(range(len(whole)))
            assert seen[-len(tokens) :] == tokens.tolist()
            assert seen[-len(tokens) - 1] == tokens[0] - 1, "the token before the first is the one that predicts it"
            assert tokens.tolist() == list(range(tokens[0], tokens[-1] + 1))
            assert row.behaviour_logprobs[tokens].tolist() == of.behaviour_logprobs.tolist()
            assert row.advantages[tokens].tolist() == of.advantages.astype(np.float32).tolist()
            assert row.weights[tokens].tolist() == [np.float32(of.weight)] * len(tokens)
        for values in (row.behaviour_logprobs, row.advantages, row.weights):
            assert not values[~row.mask].any()
    mass = [sum(float(row.weights.sum(dtype=np.float64)) for row in of) for of in (rows, one_by_one(pieces))]
    assert mass[0] == pytest.approx(mass[1], rel=1e-12)


@given(call_trees())
def test_what_can_be_shared_is_shared(pieces: list[Piece]) -> None:
    """Against comparing every call with every other: one row for each prompt that continues no call."""
    rows, _ = merged(pieces, Room(10_000))
    roots = set()
    for one in pieces:
        prompt = one.prompt_token_ids.tolist()
        wholes = [[*p.prompt_token_ids.tolist(), *p.response_token_ids.tolist()] for p in pieces if p.key == one.key]
        if not any(prompt[: len(whole)] == whole for whole in wholes):
            roots.add((one.key, tuple(prompt)))
    assert len(rows) == len(roots)


@given(call_trees())
def test_of_several_the_longest_is_continued(pieces: list[Piece]) -> None:
    prompts = {k: piece.prompt_token_ids.tobytes() for k, piece in enumerate(pieces)}
    wholes = {k: prompts[k] + piece.response_token_ids.tobytes() for k, piece in enumerate(pieces)}
    forest = prefix_forest(prompts, wholes)
    for call, prompt in prompts.items():
        begun = [whole for whole in wholes.values() if prompt.startswith(whole)]
        parent = forest.of_call[call].parent
        assert (wholes[parent] if parent is not None else b"") == max(begun, key=len, default=b"")


class Counted(bytes):
    """Bytes that count how often they are asked whether they begin with others."""

    asked = 0

    def startswith(self, *args: object) -> bool:
        Counted.asked += 1
        return super().startswith(*args)  # type: ignore[arg-type]


def test_calls_are_not_compared_in_pairs() -> None:
    """A thousand calls, each of which begins with every one before it, and a thousand that share nothing."""
    for share in (True, False):
        prompts = {k: Counted(bytes([1] * (2 * k + 1)) if share else k.to_bytes(2, "big") + b"x") for k in range(1000)}
        wholes = {k: Counted(prompt + b"\x01") for k, prompt in prompts.items()}
        Counted.asked = 0
        prefix_forest(prompts, wholes)
        assert 0 < Counted.asked <= 4 * len(prompts)
