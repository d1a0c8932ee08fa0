"""Ends calls: builds their spans, proves their version, queues them. Every call is recorded exactly once.

Nothing here delays the client: all of it happens after the answer went out. At once a call stands in the journal, as
unproved, so that killing the process does not lose it. Its engine is asked for the version once for all calls that
ended meanwhile. What that proved is added to the spans, which go into the spool, and the journal notes it: at once, so
that a call never comes back which is recorded. Of proved calls a few are done at a time.

Invariant: a later call extends one only if that will be there whatever happens: its spans are in the queue, or they
stand in the journal and room is kept for them in the spool.
"""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass

from sidecar.call import DISCONNECTED, Call, bare_spans, verdicts
from sidecar.delivery import Delivery
from sidecar.history import Growth, History
from sidecar.journal import Place
from sidecar.metrics import CLIENT_CLOSED, Metrics
from sidecar.policy import Replica
from sidecar.spool_segment import HEAD

log = logging.getLogger(__name__)

CONFIRM_LIMIT_S = 120
"""After this a call is recorded as not proved."""
TICK_S = 0.002
SHARE = 32
"""Every tick does this part of what waits, and two calls more: a burst would show in agents' latency."""
VERDICT_BYTES = 256
"""More than a verdict takes."""


@dataclass(eq=False, slots=True)
class _Ended:
    """A call on its way to its record."""

    call: Call
    spans: list[bytes] | None = None
    """Without verdicts; None: not built yet, empty: they could not be."""
    place: Place | None = None
    """Where it stands in the journal, if it does."""
    promised: int = 0
    """So much room is kept for it: later calls extend it already."""


class Recorder:
    """Turns calls into spans. `close` waits for those whose version is still being asked for."""

    def __init__(self, delivery: Delivery, metrics: Metrics) -> None:
        self._delivery = delivery
        self._metrics = metrics
        self._history = History()
        self._unproved: dict[Replica, list[_Ended]] = {}
        self._answered: deque[_Ended] = deque()
        """The engine has spoken, or will not."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._closing = False

    def finish(self, call: Call) -> None:
        """The call has ended now, well or badly."""
        call.ended_ns = time.time_ns()
        self._metrics.calls[str(CLIENT_CLOSED if call.error_type == DISCONNECTED else call.status)] += 1
        if call.continuation is not None and call.continuation.outcome is not None:
            self._metrics.continuations[call.policy or "", call.continuation.outcome] += 1
        if call.unread is not None:
            self._metrics.unread[call.unread] += 1
        replica, ended = call.replica, _Ended(call)
        if replica is None or call.untrainable is not None or call.start != replica.stamp or self._closing:
            self._record(ended)
            return
        self._journal(ended)
        waiting = self._unproved.get(replica)
        if waiting is not None:
            waiting.append(ended)
            return
        self._unproved[replica] = [ended]
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
        if self._tick is not None:
            self._tick.cancel()
        for waiting in self._unproved.values():
            self._answered += waiting
        self._record_next(len(self._answered))
        self._delivery.journal.close()

    def abandon(self) -> None:
        """Have on disk all that has ended, proved or not: the process ends at once, without `close`."""
        self._record_next(len(self._answered))

    async def _prove(self, replica: Replica) -> None:
        """Ask the engine once for all calls that ended before the question, until none is left."""
        while waiting := self._unproved[replica]:
            self._unproved[replica] = []
            try:
                async with asyncio.timeout(CONFIRM_LIMIT_S):
                    end = await replica.confirmed()
                for ended in waiting:
                    ended.call.end = end
            except TimeoutError:
                log.warning("engine did not confirm its version url=%s limit_s=%d", replica.url, CONFIRM_LIMIT_S)
            finally:
                self._answered += waiting
            self._start_tick()
        del self._unproved[replica]

    def _start_tick(self) -> None:
        if self._tick is None and self._answered:
            self._tick = asyncio.get_running_loop().call_later(TICK_S, self._record_some)

    def _record_some(self) -> None:
        self._tick = None
        self._record_next(2 + len(self._answered) // SHARE)
        self._start_tick()

    def _record_next(self, count: int) -> None:
        """Record some of the calls whose engine has spoken; the journal notes it in one write."""
        taken = [self._answered.popleft() for _ in range(min(count, len(self._answered)))]
        if settled := [place for ended in taken if (place := self._record(ended)) is not None]:
            self._delivery.journal.write([], settled)

    def _journal(self, ended: _Ended) -> None:
        if not self._build(ended):
            return
        spans = list(zip(ended.spans or (), verdicts(ended.call, ended.call.why_untrainable()), strict=True))
        [ended.place] = self._delivery.journal.write([spans], [])
        if ended.place is not None and ended.call.growth is not None:
            self._promise(ended, ended.call.growth)

    def _promise(self, ended: _Ended, growth: Growth) -> None:
        size = sum(HEAD + len(span) + VERDICT_BYTES for span in ended.spans or ())
        if self._delivery.promise(size):
            ended.promised = size
            growth.shipped()

    def _build(self, ended: _Ended) -> bool:
        call = ended.call
        try:
            if call.identity.has_company:
                kind = call.policy or call.model
                call.growth = self._history.grow(
                    call.identity, call.chat(call.body), call.answer, tenant=call.tenant, kind=kind
                )
            ended.spans = list(bare_spans(call))
        except Exception:  # one odd call must not cost the others
            ended.spans = []
            self._metrics.unrecorded += 1
            log.exception("call could not be recorded rollout=%s", call.identity.rollout_id)
        return bool(ended.spans)

    def _record(self, ended: _Ended) -> Place | None:
        """Queue the spans: the place in the journal that they do not need any more."""
        if ended.spans is None:
            self._build(ended)
        call = ended.call
        if not ended.spans:
            return None
        reasons = call.why_untrainable()
        self._metrics.choices.update(reason or "" for reason in reasons)
        if ended.promised:
            self._delivery.redeem(ended.promised)
        whole = [span + verdict for span, verdict in zip(ended.spans, verdicts(call, reasons), strict=True)]
        queued = [self._delivery.put(span) for span in whole]
        if call.growth is not None and not ended.promised and all(queued):
            call.growth.shipped()
        return ended.place
