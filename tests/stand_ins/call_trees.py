"""Calls of a rollout that continue each other in every way: chains, branches, n > 1, repeated prompts, fresh starts."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from trainer.packing import Piece
from trainer.rows import Row


def piece(prompt: list[int], response: list[int], number: int = 0, key: object = None) -> Piece:
    """A call whose every response token has numbers of its own."""
    r = np.arange(len(response))
    return Piece(
        prompt_token_ids=np.array(prompt, np.int64),
        response_token_ids=np.array(response, np.int64),
        behaviour_logprobs=(-0.25 * (r + 1) - number).astype(np.float32),
        advantages=(number + 1) / 8 + r / 1024,
        weight=1 / (number + 2),
        key=key,
    )


@st.composite
def call_trees(draw: st.DrawFn, max_calls: int = 12, vocabulary: int = 3) -> list[Piece]:
    """Calls in any order, some of them left out; with so few tokens, calls also agree by chance."""
    tokens = st.integers(0, vocabulary - 1)
    calls: list[tuple[list[int], list[int], object]] = []
    for _ in range(draw(st.integers(1, max_calls))):
        kind = draw(st.sampled_from(["fresh", "again", "on", "on", "on"])) if calls else "fresh"
        if kind == "fresh":
            prompt, key = draw(st.lists(tokens, min_size=1, max_size=4)), draw(st.sampled_from("ab"))
        else:
            before, said, key = draw(st.sampled_from(calls))
            more = draw(st.lists(tokens, max_size=3))
            prompt = before if kind == "again" else before + said + more
        calls.append((prompt, draw(st.lists(tokens, min_size=1, max_size=3)), key))
    used = draw(st.lists(st.sampled_from(range(len(calls))), min_size=1, unique=True))
    return [
        piece(prompt, response, number, key) for number, (prompt, response, key) in enumerate(calls[i] for i in used)
    ]


def seen_from(row: Row, token: int) -> list[int]:
    """The tokens that a token of the row attends to, itself included, in order."""
    if row.branches is None:
        return list(range(token + 1))
    return [other for other in range(token + 1) if row.branches.reach[other] >= token]


def responses(row: Row, pieces: list[Piece]) -> dict[int, Any]:
    """Of each sample of a row, which tokens of the row its response is."""
    trained = np.flatnonzero(row.mask)
    ends = np.cumsum([len(pieces[number].response_token_ids) for number in row.samples])
    return dict(zip(row.samples, np.split(trained, ends[:-1]), strict=True))
