"""Ends calls: proves the version, builds the spans, queues them. Every call is recorded exactly once.

Nothing here delays the client: the question to the engine is asked after the answer went out, once for all calls that
ended meanwhile, and agents are served between two spans.
"""

import asyncio
import logging
import time

from sidecar.call import DISCONNECTED, Call, call_spans
from sidecar.delivery import Delivery
from sidecar.history import History
from sidecar.metrics import CLIENT_CLOSED, Metrics
from sidecar.policy import Replica

log = logging.getLogger(__name__)

CONFIRM_LIMIT_S = 120
"""After this a call is recorded as not proved."""


class Recorder:
    """Turns calls into spans. `close` waits for those whose version is still being asked for."""

    def __init__(self, delivery: Delivery, metrics: Metrics) -> None:
        self._delivery = delivery
        self._metrics = metrics
        self._history = History()
        self._unproved: dict[Replica, list[Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def finish(self, call: Call) -> None:
        """The call has ended now, well or badly."""
        call.ended_ns = time.time_ns()
        self._metrics.calls[str(CLIENT_CLOSED if call.error_type == DISCONNECTED else call.status)] += 1
        if call.continuation is not None and call.continuation.outcome is not None:
            self._metrics.continuations[call.policy or "", call.continuation.outcome] += 1
        replica = call.replica
        if replica is None or call.untrainable is not None or call.start != replica.stamp or self._closing:
            self._record(call)
            return
        waiting = self._unproved.get(replica)
        if waiting is not None:
            waiting.append(call)
            return
        self._unproved[replica] = [call]
        task = asyncio.create_task(self._prove(replica))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, timeout_s: float) -> None:
        """Record what is pending, unproved where the engine does not answer in time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _prove(self, replica: Replica) -> None:
        """Ask the engine once for all calls that ended before the question, until none is left."""
        while calls := self._unproved[replica]:
            self._unproved[replica] = []
            try:
                async with asyncio.timeout(CONFIRM_LIMIT_S):
                    end = await replica.confirmed()
                for call in calls:
                    call.end = end
            except TimeoutError:
                log.warning("engine did not confirm its version url=%s limit_s=%d", replica.url, CONFIRM_LIMIT_S)
            except asyncio.CancelledError:
                self._record_all(calls + self._unproved.pop(replica))
                raise
            await self._record_in_turn(replica, calls)
        del self._unproved[replica]

    async def _record_in_turn(self, replica: Replica, calls: list[Call]) -> None:
        for place, call in enumerate(calls):
            self._record(call)
            try:
                await asyncio.sleep(0)  # a call that has arrived is served first
            except asyncio.CancelledError:
                self._record_all(calls[place + 1 :] + self._unproved.pop(replica))
                raise

    def _record_all(self, calls: list[Call]) -> None:
        for call in calls:
            self._record(call)

    def _record(self, call: Call) -> None:
        try:
            call.growth = self._history.grow(
                call.identity, call.policy or call.model, call.chat(call.body), call.answer
            )
            spans = list(call_spans(call))
        except (TypeError, ValueError):
            self._metrics.unrecorded += 1
            log.exception("call could not be recorded rollout=%s", call.identity.rollout_id)
            return
        for choice in call.answer.choices or (None,):
            self._metrics.choices[call.why_untrainable(choice) or ""] += 1
        queued = [self._delivery.put(span) for span in spans]
        if call.growth is not None and all(queued):
            call.growth.shipped()
