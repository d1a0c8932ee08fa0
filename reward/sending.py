"""Rewards on their way: sent together, and acknowledged by the collector before anybody is told that they are given."""

from collections.abc import Sequence

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tracegrad.errors import UnreachableError
from tracegrad.otlp import OtlpSender
from tracegrad.settings import Settings

STORE_TIMEOUT_S = 60.0


async def send(settings: Settings, source: str, events: Sequence[LogRecord]) -> None:
    """Send all of them, in one request as long as they fit into one. Raises UnreachableError when any was not taken."""
    if not events:
        return
    async with OtlpSender(settings.otlp, source, close_timeout_s=0.1, access=settings.otlp_access) as sender:
        taken = sum(sender.put(event) for event in events)
        flushed = await sender.flush(STORE_TIMEOUT_S)
        refused = sender.counters.dropped_refused
    if taken < len(events) or not flushed or refused:
        raise UnreachableError(f"the collector at {settings.otlp} did not take all rewards: see its log, and run again")
