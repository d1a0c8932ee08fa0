"""Durations as text: a number and a unit, such as `500ms`, `2s`, `1m`, `12h` or `7d`."""

import re

UNITS_S = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}


def duration_s(text: str) -> float | None:
    """The seconds that `text` stands for; None where it is not a duration."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", text)
    return float(found[1]) * UNITS_S[found[2]] if found else None
