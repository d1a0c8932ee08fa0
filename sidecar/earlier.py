"""One recorded choice, as later calls extend it: its place in the tree of its rollout, and its ids.

Invariants: the ids that a call shares with the one it extends end in that one's own part, so they are more than that
one shares with its own (whatever ends sooner extends an ancestor); no two calls have the same place in a line.
"""

from dataclasses import dataclass

from sidecar import shared_ids

MOST_FORKS = 32
"""Lines on the way from a root; beyond, a call is recorded whole and begins a tree."""
ENTRY_BYTES = 1000
"""What one takes beside its ids, about."""


@dataclass(frozen=True, slots=True)
class Extension:
    """How a call extends an earlier one."""

    earlier: "Earlier"
    n_shared: int
    """Its prompt begins with so many ids of the earlier prompt and response; 0: its ids, if any, are whole."""
    characters: int
    """The same in characters."""
    left_out: int
    """Its messages begin with so many, all of the earlier call's; 0: they are whole."""


class Earlier:
    """One choice. Ids are text (`sidecar.shared_ids`)."""

    __slots__ = (
        *("span_id", "kind", "n_messages", "tools", "new_ids", "response", "extends", "n_shared", "left_out"),
        *("root", "line", "forks", "depth", "continued", "n_tokens", "_characters", "_whole"),
    )

    def __init__(
        self, span_id: str, kind: str, *, n_messages: int, tools: int, prompt: str, response: str, n_tokens: int
    ) -> None:
        self.span_id = self.root = self.line = span_id
        self.kind = kind
        """The policy or model: ids of one are not those of another."""
        self.n_messages = n_messages
        self.tools = tools
        """A mark of the tool definitions."""
        self.new_ids = prompt
        """Those of the prompt that it does not share with the call it extends."""
        self.response = response
        self.extends: Earlier | None = None
        self.n_shared = self._characters = self.left_out = self.depth = 0
        self.forks: tuple[str, ...] = ()
        """The lines that begin on the way from the root to here, the last being its own. Empty: it is in the root's."""
        self.continued = False
        """A later call has the place behind it in its line."""
        self.n_tokens = n_tokens
        """Ids of prompt and response."""
        self._whole: str | None = shared_ids.joined(prompt, response)

    def extend(self, how: Extension, *, in_line: bool) -> None:
        """Take the place behind an earlier call: in its line, where that is wanted and free, else in one of its own.

        The place is taken for good, also should this call be lost: what comes later then begins a line.
        """
        earlier = how.earlier
        has_ids = bool(self.new_ids)
        if not in_line or earlier.continued or earlier.has_ids != has_ids:
            if len(earlier.forks) == MOST_FORKS:
                return
            self.forks = (*earlier.forks, self.span_id)
        else:
            self.forks, self.line = earlier.forks, earlier.line
            earlier.continued = True
        self.extends, self.root, self.depth = earlier, earlier.root, earlier.depth + 1
        self.n_shared, self._characters, self.left_out = how.n_shared, how.characters, how.left_out
        self.new_ids = shared_ids.rest(self.new_ids, how.characters) if how.characters else self.new_ids

    @property
    def has_ids(self) -> bool:
        """Whether its tokens are known."""
        return bool(self.new_ids or self.n_shared)

    @property
    def begins_line(self) -> bool:
        """Whether it is the first of a line that is not the root's."""
        return bool(self.forks) and self.line == self.span_id

    @property
    def n_bytes(self) -> int:
        """The memory it takes, about."""
        return len(self.new_ids) + len(self.response) + len(self._whole or "") + ENTRY_BYTES

    def forget_whole(self) -> int:
        """Keep only what is new; returns how much memory that frees."""
        freed = len(self._whole or "")
        self._whole = None
        return freed

    def ids(self) -> str:
        """Prompt and response, put together where only what is new was kept."""
        path, at = [], self
        while at._whole is None and at.extends is not None:
            path.append(at)
            at = at.extends
        ids = at._whole if at._whole is not None else shared_ids.joined(at.new_ids, at.response)
        for one in reversed(path):
            prompt = shared_ids.joined(ids[: one._characters], one.new_ids)
            ids = shared_ids.joined(prompt, one.response)
        return ids


def extension_at(earlier: Earlier, ids: str, characters: int, n_shared: int, *, with_messages: bool) -> Extension:
    """The extension of `earlier`, or of the ancestor in whose own part the shared ids end."""
    while earlier.extends is not None and n_shared <= earlier.n_shared:
        with_messages = with_messages and earlier.left_out > 0
        earlier = earlier.extends
    return Extension(earlier, n_shared, characters, earlier.n_messages if with_messages else 0)
