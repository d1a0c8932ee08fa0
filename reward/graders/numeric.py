"""The same number."""

import math
import re
from typing import Any

from reward.answer import is_answer

NUMBER = re.compile(
    r"(?<![\w.])"  # not inside a word or another number; a minus after a digit is an operator
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d+)?"
)
TOLERANCE = 1e-6


def numeric(answer: str, expected: Any) -> float:
    """1 when the last number in `answer` equals the last one in `expected`, to one part in a million; else 0.

    Raises ValueError when nothing numeric is expected.
    """
    wanted = last_number(str(expected))
    if wanted is None:
        raise ValueError(f"the expected answer {expected!r} holds no number")
    said = last_number(answer) if is_answer(answer) else None
    return float(said is not None and math.isclose(said, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE))


def last_number(text: str) -> float | None:
    """The last number in a text: `-3`, `1,234.5`, `.5`, `2e3`; None where there is none."""
    found = NUMBER.findall(text.replace("\u2212", "-"))
    return float(found[-1].replace(",", "")) if found else None
