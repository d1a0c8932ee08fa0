"""`since`: from when on rollouts are looked at. `last` (what no step has consumed), a time, or an age like `7d`."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from tracegrad.errors import SettingsError

LAST = "last"
LATEST_NS = 2**63 - 1
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Since:
    """`from_ns`: unix time from which rollouts started. `untrained_only`: without those that a step consumed."""

    from_ns: int
    untrained_only: bool


def parse_since(text: str, now_ns: int) -> Since:
    """`last`, an ISO 8601 time (UTC where it names no zone) or an age. Raises SettingsError."""
    if text == LAST:
        return Since(0, untrained_only=True)
    if age := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return Since(now_ns - round(float(age[1]) * UNITS_S[age[2]] * 1e9), untrained_only=False)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(
            f"bad since {text!r}: give last, a time like 2026-01-31T12:00, or an age like 7d"
        ) from error
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    return Since(min(round(zoned.timestamp() * 1e9), LATEST_NS), untrained_only=False)
