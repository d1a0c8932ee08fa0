"""Token ids as text, `1,2,3`: how many of them two lists share at their beginnings. Nothing is parsed.

Comparing text is comparing memory: a prompt of 5,000 ids takes microseconds, and lists of numbers would take as many
milliseconds to make.
"""

from sidecar.chat_answer import Numbers


def inner(numbers: Numbers | None) -> str:
    """The ids without their brackets; empty for none."""
    return "" if numbers is None else numbers.text[1:-1]


def joined(first: str, second: str) -> str:
    """One list after the other."""
    return f"{first},{second}" if first and second else first or second


def shared(one: str, other: str) -> int:
    """How many characters the longest beginning of whole ids has that both lists share."""
    length = _common_length(one, other)
    if _ends(one, length) and _ends(other, length):
        return length
    return max(one.rfind(",", 0, length), 0)


def count(ids: str) -> int:
    """How many ids there are."""
    return ids.count(",") + 1 if ids else 0


def rest(ids: str, characters: int) -> str:
    """The ids behind a beginning that `shared` found."""
    return ids[characters:].removeprefix(",")


def _ends(ids: str, at: int) -> bool:
    """Whether an id ends there, or none has begun."""
    return at in (0, len(ids)) or ids[at] == ","


def _common_length(one: str, other: str) -> int:
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    same, differ = 0, most
    while differ - same > 1:
        middle = (same + differ) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            differ = middle
    return same
