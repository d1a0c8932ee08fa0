"""What prefix merging did to a batch: how many consecutive calls of an agent were merged, and what that saved."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainer.packing import Piece
from trainer.prefix_forest import Forest
from trainer.rows import Row
from trainer.transitions import Attempt, Call


@dataclass(frozen=True)
class Pairs:
    """Consecutive requests of one agent, whose samples are used; the choices of one request (n > 1) are one.

    `merged`: the later one's prompt is a continuation, or a repetition, of an earlier call in its row. `split`: it is,
    but in one row they would have been too long or cost more. `breaks`: neither; numbers of the earlier and the later
    sample.
    """

    merged: int = 0
    split: int = 0
    breaks: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, calls: Sequence[Call], forests: Sequence[Forest], rows: Sequence[Row]) -> "Pairs":
        """The pairs among `calls`, the used samples' in order, which `forests` and `rows` are about."""
        row_of = {number: index for index, row in enumerate(rows) for number in row.samples}
        of_call = {number: prompt for forest in forests for number, prompt in forest.of_call.items()}
        merged = split = 0
        breaks: list[tuple[int, int]] = []
        for before, after in _consecutive(calls):
            prompt = of_call[after]
            shared = [number for number in prompt.calls if number < after]
            if prompt.parent is not None:
                shared.append(prompt.parent)
            if not shared:
                breaks.append((before, after))
            elif any(row_of[number] == row_of[after] for number in shared):
                merged += 1
            else:
                split += 1
        return cls(merged, split, tuple(breaks))

    def __len__(self) -> int:
        return self.merged + self.split + len(self.breaks)


def _consecutive(calls: Sequence[Call]) -> list[tuple[int, int]]:
    """Numbers of the first choice of each request and of the agent's next request."""
    last: dict[tuple[Attempt, str, str], int] = {}
    pairs: list[tuple[int, int]] = []
    for number, call in enumerate(calls):
        agent = (call.rollout_id, call.attempt), call.policy, call.agent
        before = last.get(agent)
        if before is not None and call.response_id and call.response_id == calls[before].response_id:
            continue
        if before is not None:
            pairs.append((before, number))
        last[agent] = number
    return pairs


@dataclass(frozen=True)
class MergeReport:
    """`tokens_before`: prompts and responses of the samples. `tokens_after`: of the rows, which are computed.

    `pairs`: empty where nothing was to be merged. `classes`: of its breaks, by class, once they are classified.
    """

    samples: int
    rows: int
    branched_rows: int
    tokens_before: int
    tokens_after: int
    pairs: Pairs = Pairs()
    classes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Row], pieces: Sequence[Piece], pairs: Pairs) -> "MergeReport":
        """What making `rows` of `pieces` did."""
        return cls(
            samples=len(pieces),
            rows=len(rows),
            branched_rows=sum(row.branches is not None for row in rows),
            tokens_before=sum(piece.n_tokens for piece in pieces),
            tokens_after=sum(len(row.token_ids) for row in rows),
            pairs=pairs,
        )

    @property
    def merge_rate(self) -> float:
        """Merged pairs of all; 1 where there is no pair."""
        return self.pairs.merged / len(self.pairs) if len(self.pairs) else 1.0

    @property
    def saved_share(self) -> float:
        """Of the tokens, those that need not be computed."""
        return 1 - self.tokens_after / self.tokens_before if self.tokens_before else 0.0

    def classified(self, classes: Sequence[str]) -> "MergeReport":
        """With the classes of its breaks, in their order."""
        if len(classes) != len(self.pairs.breaks):
            raise ValueError("one class per break")
        return replace(self, classes=Counter(classes))

    def metrics(self) -> dict[str, float]:
        """As metrics of a step."""
        return {
            "n_rows": self.rows,
            "merge_pairs": len(self.pairs),
            "merge_rate": self.merge_rate,
            "merge_saved_share": self.saved_share,
            "merge_split": self.pairs.split,
            "row_tokens": self.tokens_after,
            "branched_rows": self.branched_rows,
            **{f"merge_break_{name}": count for name, count in sorted(self.classes.items())},
        }
