"""How a replica stands, in the words that operators read everywhere: policies, readiness, metrics, log, errors."""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.replica import Replica


class Standing(StrEnum):
    """What becomes of calls for a replica."""

    SERVES = "serves"
    LAST_RESORT = "last_resort"
    """It serves while no other can: it runs another version than it should, tells none, or is not as pinned."""
    UPDATING = "updating"
    """Calls wait: its weights are being changed, or are about to be."""
    PAUSED = "paused"
    """Calls wait for an operator."""
    BROKEN = "broken"
    """It serves nothing: its weights are unknown."""
    DOWN = "down"
    """It does not answer."""


def standing_of(replica: "Replica") -> Standing:
    """How it stands now."""
    if replica.paused:
        return Standing.PAUSED
    if replica.closed:
        return Standing.UPDATING
    if replica.broken:
        return Standing.BROKEN
    if not replica.answers:
        return Standing.LAST_RESORT if replica.mute else Standing.DOWN
    if replica.behind and not replica.aside:
        return Standing.UPDATING
    return Standing.SERVES if replica.in_service else Standing.LAST_RESORT


def problem_of(replica: "Replica") -> str:
    """What is wrong with it, and what to do; empty where nothing is."""
    engine = f"engine at {replica.url}"
    if replica.broken:
        last = f" ({replica.aside_since})" if replica.aside_since else ""
        return (
            f"{engine} runs unknown weights and serves nothing, since {replica.broken_by}{last}: "
            "publish again, or restart it"
        )
    if not replica.answers:
        return replica.loss
    if replica.aside:
        trains = "" if replica.stamp.version is not None else ", and its calls train nothing"
        runs = "" if replica.wanted is None else f" runs version {replica.version} instead of {replica.wanted}, so it"
        return f"{engine}{runs} serves only as a last resort{trains}: {replica.aside_since}"
    if replica.behind:
        return f"{engine} is on version {replica.version}: it is being brought to version {replica.wanted}"
    return replica.traits.problem(replica.url)
