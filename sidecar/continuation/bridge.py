"""What the template writes after an answer, found by comparing two renderings. Pure.

The whole new conversation is rendered twice, the second time with a mark at the end of the answer. Where the two agree
at their ends, the text does not depend on the answer; it begins inside or at the end of the answer's turn, and so holds
the end-of-turn token and everything that follows.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import orjson

from sidecar.chat_answer import mapping, objects

Json = dict[str, Any]

MARK = " \u2042 mark"
"""Text that no answer ends with."""


def marked(message: Mapping[str, Any]) -> Json | None:
    """A copy of an assistant message whose last part ends differently; None where there is no way to change it."""
    calls = objects(message.get("tool_calls"))
    if not calls:
        content = message.get("content")
        if isinstance(content, list):
            return {**message, "content": [*content, {"type": "text", "text": MARK}]}
        return {**message, "content": (content or "") + MARK}
    function = mapping(calls[-1].get("function"))
    try:
        arguments = orjson.loads(function.get("arguments") or "{}")
    except (orjson.JSONDecodeError, TypeError):
        return None
    if not isinstance(arguments, dict):
        return None
    # The last key in any order.
    longer = orjson.dumps({**arguments, "\U0010ffff": MARK}).decode()
    return {**message, "tool_calls": [*calls[:-1], {**calls[-1], "function": {**function, "arguments": longer}}]}


def common_end(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The longest ending that two renderings share."""
    return list(one[len(one) - _alike(reversed(one), reversed(other)) :])


def common_start(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The longest beginning that two renderings share."""
    return list(one[: _alike(one, other)])


def _alike(one: Iterable[int], other: Iterable[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def starts_with(longer: Sequence[int], shorter: Sequence[int]) -> bool:
    """Whether a rendering begins with another."""
    return len(longer) >= len(shorter) and longer[: len(shorter)] == shorter


def bridge(rendered: list[int], other: list[int], end: int, *, turns: int, closed: bool) -> list[int] | None:
    """The ids between an answer's own and the place where the next one begins; None where they cannot be told.

    `rendered`, `other`: the conversation, and the same with the answer marked. `end`: the token that ends a turn.
    `turns`: how often it stands before the answer. `closed`: the answer's own ids end with it.
    """
    tail = common_end(rendered, other)
    if end not in tail or rendered[: len(rendered) - len(tail)].count(end) != turns:
        return None
    place = tail.index(end)
    return tail[place + 1 :] if closed else tail[place:]
