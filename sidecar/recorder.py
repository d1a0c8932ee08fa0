"""Ends calls: proves the version, builds the spans, queues them. Every call is recorded exactly once.

Nothing here delays the client: the question to the engine is asked after the answer went out.
"""

import asyncio
import logging
import time

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.call import DISCONNECTED, Call, call_spans
from sidecar.metrics import CLIENT_CLOSED, Metrics
from sidecar.policy import Replica
from tracegrad.otlp import OtlpSender

log = logging.getLogger(__name__)

CONFIRM_LIMIT_S = 120
"""After this a call is recorded as not proved."""


class Recorder:
    """Turns calls into spans. `close` waits for those whose version is still being asked for."""

    def __init__(self, sender: OtlpSender, metrics: Metrics) -> None:
        self._sender = sender
        self._metrics = metrics
        self._pending: set[asyncio.Task[None]] = set()

    def finish(self, call: Call) -> None:
        """The call has ended now, well or badly."""
        call.ended_ns = time.time_ns()
        self._metrics.calls[str(CLIENT_CLOSED if call.error_type == DISCONNECTED else call.status)] += 1
        replica = call.replica
        if replica is None or call.untrainable is not None or call.start != replica.stamp:
            self._record(call)
            return
        task = asyncio.create_task(self._confirm(call, replica))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def close(self, timeout_s: float) -> None:
        """Record what is pending, unproved where the engine does not answer in time."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=timeout_s)
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)

    async def _confirm(self, call: Call, replica: Replica) -> None:
        try:
            call.end = await asyncio.wait_for(replica.confirmed(), CONFIRM_LIMIT_S)
        except TimeoutError:
            log.warning("engine did not confirm its version url=%s limit_s=%d", replica.url, CONFIRM_LIMIT_S)
        finally:
            self._record(call)

    def _record(self, call: Call) -> None:
        try:
            spans = list(call_spans(call))
        except (TypeError, ValueError):
            self._metrics.unrecorded += 1
            log.exception("call could not be recorded rollout=%s", call.identity.rollout_id)
            return
        for choice in call.answer.choices or (None,):
            self._metrics.choices[call.why_untrainable(choice) or ""] += 1
        for span in spans:
            self._sender.put(Span.FromString(span))
