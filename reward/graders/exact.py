"""The same text."""

from typing import Any

from reward.answer import is_answer


def exact(answer: str, expected: Any) -> float:
    """1 when `answer` is `expected` as text, apart from white space at the ends; else 0."""
    return float(is_answer(answer) and answer.strip() == str(expected).strip())
