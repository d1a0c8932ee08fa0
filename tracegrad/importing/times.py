"""Times in traces, as nanoseconds since 1970."""

import math
from datetime import UTC, datetime
from typing import Any

from tracegrad.importing.json_text import whole

LATEST_NS = 2**63 - 1
_SECONDS_BELOW, _MILLIS_BELOW, _MICROS_BELOW = 10**11, 10**14, 10**17
"""Numbers without a unit: what they would be after the year 5000 they are not."""


def time_ns(told: Any) -> int | None:
    """ISO 8601 (UTC where it names no zone), `[seconds, nanoseconds]`, or a number of seconds, ms, us or ns."""
    if isinstance(told, list) and len(told) == 2 and all(isinstance(one, int) for one in told):
        return _bounded(told[0] * 10**9 + told[1])
    if isinstance(told, str) and (number := whole(told)) is not None:
        told = number
    if isinstance(told, bool) or told is None or (isinstance(told, float) and not math.isfinite(told)):
        return None
    if isinstance(told, int | float):
        for below, factor in ((_SECONDS_BELOW, 10**9), (_MILLIS_BELOW, 10**6), (_MICROS_BELOW, 10**3)):
            if abs(told) < below:
                return _bounded(int(told) * factor + round((told - int(told)) * factor))
        return _bounded(int(told))
    return _of_text(told) if isinstance(told, str) else None


def _of_text(told: str) -> int | None:
    """To the nanosecond: `datetime` knows microseconds."""
    head, dot, rest = told.strip().replace(" UTC", "Z").partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    try:
        time = datetime.fromisoformat(head + rest[len(digits) :])
    except ValueError:
        return None
    seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return _bounded(int(seconds) * 10**9 + int(digits[:9].ljust(9, "0") or 0))


def _bounded(ns: int) -> int | None:
    return ns if 0 <= ns <= LATEST_NS else None
