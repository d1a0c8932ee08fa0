"""Several worker processes on one port, and the process that looks after them.

The main process claims the port, so that a port in use is one clear error; the workers alone listen on it. It serves
the admin port, publishes, adds up what the workers count, and replaces those that die. What dies with a worker are its
own calls in flight; spans it has not sent are on disk, and another worker sends them.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from sidecar.access_log import require_writable
from sidecar.board import Board
from sidecar.channel import Message
from sidecar.exposition import Family, merged, what_stays
from sidecar.gate import build_gate
from sidecar.tenants import with_digests
from sidecar.worker_handle import WorkerHandle
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 30.0
"""Before a worker that died is replaced: each time twice as long, until one lives for `STEADY_S`."""
STEADY_S = 10.0
ABANDON_S = 4.0
"""Longer than it takes a worker to write down what is in flight, unless it hangs."""
GRACE_S = 10.0
"""Beyond what calls and spans may take at the end."""
REFRESH_S = 1.0
"""How often workers are asked for their counts: what one counted after that is lost if it is killed."""


class Supervisor:
    """Keeps the workers running. `hello`: what each of them is told when it starts."""

    def __init__(self, settings: Settings, hello: Message, board: Board, shutdown_s: float) -> None:
        self.restarts = 0
        self._settings = settings
        self._hello = hello
        self._board = board
        self._shutdown_s = shutdown_s
        self._workers: dict[int, WorkerHandle] = {}
        self._ended: list[Family] = []
        self._stopping = False
        self._keeping: list[asyncio.Task[None]] = []
        self._counting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start all workers and wait until they serve. Raises TracegradError where one cannot."""
        numbers = range(self._settings.sidecar.workers)
        workers = await asyncio.gather(*(WorkerHandle.start(number, self._hello) for number in numbers))
        self._workers = dict(zip(numbers, workers, strict=True))
        self._keeping = [asyncio.create_task(self._keep(worker), name=f"keep {worker.number}") for worker in workers]
        self._counting = asyncio.create_task(self._keep_counts(), name="counts")
        await asyncio.gather(*(worker.started() for worker in workers))

    async def stop(self) -> None:
        """End all workers in order; those that do not end in time, at once."""
        self._stopping = True
        for worker in self._workers.values():
            worker.stop()
        if self._keeping:
            _, late = await asyncio.wait(self._keeping, timeout=2 * self._shutdown_s + GRACE_S)
            if late:
                log.error("workers do not end, killing them count=%d", len(late))
                for worker in self._workers.values():
                    worker.kill()
                await asyncio.wait(self._keeping)
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait([self._counting])

    async def abandon(self) -> None:
        """End all workers at once, when they have recorded what is in flight."""
        self._stopping = True
        for worker in self._workers.values():
            worker.abandon()
        if self._keeping:
            await asyncio.wait(self._keeping, timeout=ABANDON_S)
        for worker in self._workers.values():
            worker.kill()

    async def families(self, own: list[Family]) -> list[Family]:
        """What all processes count together; `own`: the main one."""
        await self._refresh()
        own = [
            *own,
            Family("workers", "gauge", "Worker processes that serve.", (), {(): self._serving}),
            Family("worker_restarts_total", "counter", "Workers that died and were replaced.", (), {(): self.restarts}),
        ]
        return merged(own, [self._ended, *(worker.families for worker in self._workers.values())])

    @property
    def problems(self) -> list[str]:
        """Which workers do not serve."""
        missing = [
            n for n in range(self._settings.sidecar.workers) if n not in self._workers or not self._workers[n].ready
        ]
        return [f"worker {number} does not serve: it is being started" for number in missing]

    async def reopen_logs(self) -> None:
        """Have all workers go on in new access logs."""
        await self._ask_all("reopen")

    async def reload(self, settings: Settings, places: Mapping[str, int]) -> None:
        """Have all workers take up new settings. Raises TracegradError for those that do not."""
        sent = shown_to_workers(settings)
        self._settings, self._hello = settings, {**self._hello, "settings": sent, "places": dict(places)}
        if problems := await self._ask_all("reload", settings=sent, places=dict(places)):
            raise TracegradError("; ".join(problems))

    async def _ask_all(self, do: str, **more: Any) -> list[str]:
        answers = await asyncio.gather(
            *(worker.ask(do, **more) for worker in self._workers.values()), return_exceptions=True
        )
        return [str(answer) for answer in answers if isinstance(answer, Exception)]

    async def _refresh(self) -> None:
        await asyncio.gather(*(worker.refresh() for worker in self._workers.values() if worker.ready))

    async def _keep_counts(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._refresh()

    async def _keep(self, worker: WorkerHandle) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            began = time.monotonic()
            status = await worker.ended()
            self._ended = merged(self._ended, [what_stays(worker.families)])
            del self._workers[worker.number]
            self._board.clear_worker(worker.number)
            if self._stopping:
                return
            wait_s = FIRST_WAIT_S if time.monotonic() - began > STEADY_S else wait_s
            log.error(
                "worker ended number=%d pid=%d status=%d next_in_s=%.1f", worker.number, worker.pid, status, wait_s
            )
            await asyncio.sleep(wait_s)
            if self._stopping:
                return
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            self.restarts += 1
            worker = await WorkerHandle.start(worker.number, self._hello)
            self._workers[worker.number] = worker
            if self._stopping:
                worker.stop()

    @property
    def _serving(self) -> int:
        return sum(worker.ready for worker in self._workers.values())


def shown_to_workers(settings: Settings) -> str:
    """The settings as workers get them: tenants by the digests of their keys. Raises SettingsError."""
    return with_digests(settings).to_json().decode()


def check(settings: Settings) -> None:
    """Raise SettingsError where the workers could not take these settings up."""
    build_gate(settings)
    require_writable(settings.sidecar.access_log)
