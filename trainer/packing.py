"""A forest of calls to rows: every tree is laid out depth first, shared tokens once (see `trainer.rows.Branches`).

Invariant: every call's response is trained in exactly one row, after exactly the call's prompt. A row that has no room
for a call leaves it to a further row, which computes the prompt again and trains none of it.
"""

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.prefix_forest import Forest, Prompt, prefix_forest
from trainer.rows import Branches, Row


@dataclass(frozen=True, eq=False)
class Piece:
    """A call to train on: prompt (p,), response (r,), `behaviour_logprobs` (r,), `advantages` () or (r,), the weight of
    each response token. `key`: only calls with equal keys may share a row."""

    prompt_token_ids: NDArray[np.int64]
    response_token_ids: NDArray[np.int64]
    behaviour_logprobs: NDArray[np.float32]
    advantages: NDArray[np.float64]
    weight: float
    key: Hashable = None

    @property
    def n_tokens(self) -> int:
        """Prompt and response."""
        return len(self.prompt_token_ids) + len(self.response_token_ids)


@dataclass(frozen=True)
class Room:
    """What a row may take in: at most `max_tokens`, branches only if `branches`, and only what is cheaper in it.

    A row with branches computes attention between all of its tokens, and one without between those before each other:
    a wide tree that shares little would cost more than its calls alone. `token_cost`: of everything but attention, for
    one token, in pairs of tokens; infinite where attention costs nothing.
    """

    max_tokens: int
    branches: bool = True
    token_cost: float = math.inf

    def takes(self, size: int, known: int, new: int, *, branched: bool, branches_off: bool) -> bool:
        """Whether a call of `known` tokens that a row of `size` spares it, and `new` ones, is to be added to it."""
        if size + new > self.max_tokens or (branches_off and not self.branches):
            return False
        if (not branched and not branches_off) or math.isinf(self.token_cost):
            return True
        pairs = (size + new) ** 2 - (size**2 if branched else size**2 / 2)
        return pairs <= (known + new) ** 2 / 2 + self.token_cost * known


def one_by_one(pieces: Sequence[Piece]) -> list[Row]:
    """One row per call, in order."""
    return [
        Row.of_response(
            piece.prompt_token_ids,
            piece.response_token_ids,
            piece.behaviour_logprobs,
            advantage=piece.advantages,
            weight=piece.weight,
            sample=number,
        )
        for number, piece in enumerate(pieces)
    ]


def merged(pieces: Sequence[Piece], room: Room) -> tuple[list[Row], list[Forest]]:
    """Rows of calls with equal keys, and what continues what, in numbers of `pieces`."""
    by_key: dict[Hashable, list[int]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        by_key[piece.key].append(number)
    rows: list[Row] = []
    forests: list[Forest] = []
    for numbers in by_key.values():
        prompts = {
            number: np.ascontiguousarray(pieces[number].prompt_token_ids, np.int64).tobytes() for number in numbers
        }
        forest = prefix_forest(
            prompts,
            {
                number: prompts[number] + np.ascontiguousarray(pieces[number].response_token_ids, np.int64).tobytes()
                for number in numbers
            },
        )
        rows += _pack(pieces, forest, room)
        forests.append(forest)
    return rows, forests


def _pack(pieces: Sequence[Piece], forest: Forest, room: Room) -> Iterator[Row]:
    """The rows of one forest over some of `pieces`."""
    waiting = deque((prompt, prompt.calls) for prompt in forest.roots)
    while waiting:
        layout = _Layout(pieces, forest, room)
        layout.add_tree(*waiting.popleft())
        yield layout.row()
        waiting.extend((forest.of_call[calls[0]], calls) for calls in layout.left.values())


@dataclass(frozen=True)
class _Point:
    """A token of the row after which something may follow: its index, and how many tokens its sequence has with it."""

    index: int
    depth: int


_START = _Point(-1, 0)


_Steps = Iterator["_Steps"]
"""What has to be added before the rest can be."""


class _Layout:
    """One row as it grows. `left`: the calls that had no room, by the first call of their prompt."""

    def __init__(self, pieces: Sequence[Piece], forest: Forest, room: Room) -> None:
        self._pieces, self._forest, self._room = pieces, forest, room
        self._size = 0
        self._ids: list[NDArray[np.int64]] = []
        self._positions: list[NDArray[np.int64]] = []
        self._responses: list[tuple[int, int]] = []
        self._segments: list[tuple[int, int, int]] = []
        self._replaced: dict[int, int] = {}
        self.left: dict[int, list[int]] = {}

    def add_tree(self, prompt: Prompt, calls: Sequence[int]) -> None:
        """Add these calls of a prompt, and all that continues them. Not by recursion: a run can have thousands."""
        begun = [self._add_prompt(prompt, calls, _START)]
        while begun:
            within = next(begun[-1], None)
            if within is None:
                begun.pop()
            else:
                begun.append(within)

    def _add_prompt(self, prompt: Prompt, calls: Sequence[int], after: _Point) -> "_Steps":
        """The prompt once, and each of its calls after it. Nothing is added where no call has room."""
        segment: tuple[int, int] | None = None
        for call in calls:
            piece = self._pieces[call]
            branches_off = after.index != self._size - 1
            # A branch computes the token that it begins after once more.
            known = after.depth - branches_off
            new = piece.n_tokens - known
            if self._responses and not self._room.takes(
                self._size, known, new, branched=bool(self._replaced), branches_off=branches_off
            ):
                self.left.setdefault(prompt.calls[0], []).append(call)
                continue
            begin = self._size
            if branches_off:
                self._replaced.setdefault(after.index, self._size - 1)
            self._append(piece.prompt_token_ids[known:], known)
            if segment is None:
                segment, begin = (begin, self._size), self._size
                after = _Point(self._size - 1, len(piece.prompt_token_ids))
            yield self._add_response(call, begin)
        if segment is not None:
            self._segments.append((*segment, self._size - 1))

    def _add_response(self, call: int, begin: int) -> "_Steps":
        """The response, and all that continues it. `begin`: where its branch began."""
        piece = self._pieces[call]
        self._responses.append((self._size, call))
        self._append(piece.response_token_ids, len(piece.prompt_token_ids))
        segment, end = (begin, self._size), _Point(self._size - 1, piece.n_tokens)
        for prompt in self._forest.continuing.get(call, ()):
            yield self._add_prompt(prompt, prompt.calls, end)
        self._segments.append((*segment, self._size - 1))

    def _append(self, ids: NDArray[np.int64], position: int) -> None:
        self._ids.append(ids)
        self._positions.append(np.arange(position, position + len(ids)))
        self._size += len(ids)

    def row(self) -> Row:
        """What has been added."""
        mask = np.zeros(self._size, np.bool_)
        behaviour, advantages, weights = (np.zeros(self._size, np.float32) for _ in range(3))
        for begin, call in self._responses:
            piece = self._pieces[call]
            tokens = slice(begin, begin + len(piece.response_token_ids))
            mask[tokens] = True
            behaviour[tokens] = piece.behaviour_logprobs
            advantages[tokens] = piece.advantages
            weights[tokens] = piece.weight
        return Row(
            token_ids=np.concatenate(self._ids),
            mask=mask,
            behaviour_logprobs=behaviour,
            advantages=advantages,
            weights=weights,
            samples=tuple(call for _, call in self._responses),
            branches=self._seen() if self._replaced else None,
        )

    def _seen(self) -> Branches:
        reach = np.empty(self._size, np.int64)
        for begin, end, last in self._segments:
            reach[begin:end] = last
        reach[list(self._replaced)] = list(self._replaced.values())
        return Branches(np.concatenate(self._positions), reach)
