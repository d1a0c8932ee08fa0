"""`since`: from when on rollouts are looked at. `last` (what no step has consumed), a time, or an age like `7d`."""

from dataclasses import dataclass
from datetime import UTC, datetime

from tracegrad.errors import SettingsError
from trainer.duration import duration_s

LAST = "last"
LATEST_NS = 2**63 - 1


@dataclass(frozen=True)
class Since:
    """`from_ns`: unix time from which rollouts started. `untrained_only`: without those that a step consumed."""

    from_ns: int
    untrained_only: bool


def parse_since(text: str, now_ns: int) -> Since:
    """`last`, an ISO 8601 time (UTC where it names no zone) or an age. Raises SettingsError."""
    if text == LAST:
        return Since(0, untrained_only=True)
    if (age_s := duration_s(text)) is not None:
        return Since(now_ns - round(age_s * 1e9), untrained_only=False)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(
            f"bad since {text!r}: give last, a time like 2026-01-31T12:00, or an age like 7d"
        ) from error
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    return Since(min(round(zoned.timestamp() * 1e9), LATEST_NS), untrained_only=False)
