"""Attributes whose names tell of a tree: `llm.input_messages.0.message.role`, and back from trees to such names."""

from collections.abc import Iterator, Mapping
from typing import Any


def tree(attributes: Mapping[str, Any], prefix: str) -> Any:
    """What is told under `prefix`, where numbers are places in lists; None without any."""
    root: dict[str, Any] = {}
    for name, value in attributes.items():
        if not name.startswith(prefix + "."):
            continue
        at = root
        *way, last = name[len(prefix) + 1 :].split(".")
        for step in way:
            below = at.setdefault(step, {})
            if not isinstance(below, dict):
                break  # it is told as a whole too
            at = below
        else:
            at.setdefault(last, value)
    return _with_lists(root) if root else attributes.get(prefix)


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its dotted name. Lists of texts and numbers are leaves; lists of objects have places."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from flat(below, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for place, below in enumerate(value):
            yield from flat(below, f"{prefix}.{place}")
    elif value is not None:
        yield prefix, value


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    below = {key: _with_lists(one) for key, one in value.items()}
    if below and all(key.isascii() and key.isdecimal() for key in below):
        return [below[key] for key in sorted(below, key=int)]
    return below
