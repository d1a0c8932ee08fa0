"""Where rewards come from. A reward is an OpenTelemetry evaluation event on the span it judges.

Rewards are append-only: who judges the same span again under the same name replaces what was said, and both stay on
record. `reward.emit` is for anybody's code; `tracegrad reward` grades finished rollouts.
"""

from reward.event import emit

__all__ = ["emit"]
