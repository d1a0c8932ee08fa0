"""Trace and span ids from the operating system.

The SDK draws them from `random`, so agents that call `random.seed` would all send the same ids, and would see other
random numbers under instrumentation than without it.
"""

import secrets

from opentelemetry.sdk.trace.id_generator import IdGenerator


class SystemRandomIds(IdGenerator):
    """Ids that neither read nor move the state of `random`."""

    def generate_span_id(self) -> int:
        """64 random bits, not all zero."""
        return secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        """128 random bits, not all zero."""
        return secrets.randbits(128) or 1

    def is_trace_id_random(self) -> bool:
        """True: sets the W3C random flag, as with the SDK's own generator."""
        return True
