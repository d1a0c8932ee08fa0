"""Ends calls: proves the version, builds the spans, queues them. Every call is recorded exactly once.

Nothing here delays the client: the question to the engine is asked after the answer went out, once for all calls that
ended meanwhile, and what a question proved is written down a few spans at a time.
"""

import asyncio
import logging
import time
from collections import deque

from sidecar.call import DISCONNECTED, Call, call_spans
from sidecar.delivery import Delivery
from sidecar.history import History
from sidecar.metrics import CLIENT_CLOSED, Metrics
from sidecar.policy import Replica

log = logging.getLogger(__name__)

CONFIRM_LIMIT_S = 120
"""After this a call is recorded as not proved."""
TICK_S = 0.001
SHARE = 16
"""Every tick writes down this part of what waits, and one call at least: a burst would show in agents' latency."""


class Recorder:
    """Turns calls into spans. `close` waits for those whose version is still being asked for."""

    def __init__(self, delivery: Delivery, metrics: Metrics) -> None:
        self._delivery = delivery
        self._metrics = metrics
        self._history = History()
        self._unproved: dict[Replica, list[Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._proved: deque[Call] = deque()
        self._tick: asyncio.TimerHandle | None = None
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
        self._write(len(self._proved))

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
                self._proved += calls + self._unproved.pop(replica)
                raise
            self._proved += calls
            if self._tick is None:
                self._tick = asyncio.get_running_loop().call_later(TICK_S, self._write_some)
        del self._unproved[replica]

    def _write_some(self) -> None:
        self._write(1 + len(self._proved) // SHARE)
        left = bool(self._proved)
        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._write_some) if left else None

    def _write(self, count: int) -> None:
        for _ in range(min(count, len(self._proved))):
            self._record(self._proved.popleft())

    def _record(self, call: Call) -> None:
        try:
            if call.identity.has_company:
                kind = call.policy or call.model
                call.growth = self._history.grow(call.identity, kind, call.chat(call.body), call.answer)
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
