"""The calls of a rollout that a later one may extend, with their exact tokens. Bounded; the oldest rollouts go first.

Invariant: what a turn holds beyond the turn it extends is only what is new, so a rollout of n turns takes n pieces and
not n whole prompts.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.chat_answer import Numbers

LIMIT_BYTES = 64 << 20
OVERHEAD = 400
"""Of one turn, beside its ids."""

Key = tuple[str, str, int]
"""A tenant, a rollout, and its attempt."""


@dataclass(frozen=True, eq=False)
class Turn:
    """One sampled answer and what came before it. Ids are compact JSON text, without brackets."""

    before: "Turn | None"
    """The turn whose prompt and response this one's prompt begins with."""
    prompt: str
    """The prompt's ids that come after those."""
    response: str
    broken_off: bool
    """The response may have been ended by a limit or a stop string, and then lacks the token that ends a turn."""
    thinking: Mapping[int, str]
    """What the prompt and the response show of assistant messages' thinking, by the message's place."""

    @property
    def last(self) -> int:
        """The last id that was sampled."""
        return int(self.response.rpartition(",")[2])

    @property
    def tokens(self) -> str:
        """All ids, of prompt and response."""
        parts: list[str] = []
        turn: Turn | None = self
        while turn is not None:
            parts += [turn.response, turn.prompt]
            turn = turn.before
        return ",".join(reversed(parts))

    @property
    def sampled(self) -> int:
        """How many ids the response has."""
        return self.response.count(",") + 1


@dataclass
class _Rollout:
    turns: dict[tuple[bytes, bytes], Turn] = field(default_factory=dict)
    """By the digests of the messages that end with the turn's answer, and of what else is rendered."""
    size: int = 0


class Memory:
    """Turns by rollout and by the conversation that ends with their answer."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._rollouts: OrderedDict[Key, _Rollout] = OrderedDict()
        self.size = 0
        """Bytes held."""

    def __contains__(self, key: Key) -> bool:
        return key in self._rollouts

    def find(self, key: Key, messages: bytes, settings: bytes) -> Turn | None:
        """The newest turn whose conversation has these digests."""
        rollout = self._rollouts.get(key)
        if rollout is None:
            return None
        self._rollouts.move_to_end(key)
        return rollout.turns.get((messages, settings))

    def has(self, key: Key, messages: bytes) -> bool:
        """Whether there is such a turn, whatever else was rendered."""
        rollout = self._rollouts.get(key)
        return rollout is not None and any(known == messages for known, _ in rollout.turns)

    def add(self, key: Key, messages: bytes, settings: bytes, turn: Turn) -> None:
        """Remember a turn, in the place of one with the same digests."""
        digest = messages, settings
        rollout = self._rollouts.setdefault(key, _Rollout())
        self._rollouts.move_to_end(key)
        replaced = rollout.turns.get(digest)
        rollout.turns[digest] = turn
        grown = _bytes(turn) - (_bytes(replaced) if replaced else 0)
        rollout.size += grown
        self.size += grown
        while self.size > self._limit:
            _, oldest = self._rollouts.popitem(last=False)
            self.size -= oldest.size


def ids_text(numbers: Numbers) -> str:
    """Ids as turns hold them."""
    return numbers.text[1:-1]


def _bytes(turn: Turn) -> int:
    return len(turn.prompt) + len(turn.response) + OVERHEAD + sum(map(len, turn.thinking.values()))
