"""The agents' port of one process, and all that stands behind it.

At the end no new connection is taken, calls in flight may finish for `shutdown_s`, and spans are sent, for at most half
of that; the rest waits on disk for the next start. What is cut off is recorded as `aborted`.
"""

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from sidecar.access_log import OFF, AccessLog, open_access_log
from sidecar.delivery import Delivery
from sidecar.exposition import Family
from sidecar.fleet import Fleet
from sidecar.forward import client_session
from sidecar.gate import build_gate
from sidecar.http_server import agents_server
from sidecar.listen import BACKLOG
from sidecar.metrics import Metrics
from sidecar.prompts import Prompts
from sidecar.proxy import Proxy
from sidecar.recorder import Recorder
from sidecar.responses.store import ResponseStore
from sidecar.responses.store_thread import StoreThread
from sidecar.routes import Routes
from tracegrad.settings import Settings

log = logging.getLogger(__name__)

SERVICE = "tracegrad.sidecar"
CONFIRM_S = 5.0
GC_EVERY = 10_000
"""New objects before a collection."""
ENDING_S = 5.0
"""Beyond the time that calls get at the end: they take less, once they are told to end."""


@dataclass
class Serving:
    """What runs. `worker`: this process's number among those that share the port."""

    settings: Settings
    worker: int
    routes: Routes
    fleet: Fleet
    proxy: Proxy
    recorder: Recorder
    metrics: Metrics
    delivery: Delivery
    stored: ResponseStore
    lines_lost_before: int = 0

    def families(self) -> list[Family]:
        """What this process counts."""
        current = self.proxy.access_log
        self.metrics.log_lines_lost = self.lines_lost_before + (current.lost if current is not None else 0)
        self.metrics.waiting = self.proxy.gate.waiting
        self.metrics.responses_lost = self.stored.lost
        return self.metrics.families(self.routes.policies.values(), self.delivery)

    def reopen_log(self) -> None:
        """Go on in a new access log of the same name."""
        if self.proxy.access_log is not None:
            self.proxy.access_log.reopen()

    async def reload(self, settings: Settings, places: Mapping[str, int] | None = None) -> None:
        """Take up new settings, all or none of them. Calls in flight go on as they began. Raises SettingsError."""
        routes, gate = self.fleet.build(settings, places), build_gate(settings)
        destination, current = settings.sidecar.access_log, self.proxy.access_log
        replaced = destination != (current.destination if current is not None else OFF)
        fresh = open_access_log(destination, self.worker) if replaced else current
        await self.fleet.follow(routes, places)
        self.settings, self.routes = settings, routes
        self.proxy.routes, self.proxy.gate, self.proxy.access_log = routes, gate, fresh
        if replaced and current is not None:
            await self._close_log(current)

    async def abandon(self) -> None:
        """Break off all calls and record them as aborted, on disk: the process ends at once, and sends nothing more."""
        await self.proxy.under_way.cancel()
        self.recorder.abandon()
        await self.close_log()

    async def close_log(self) -> None:
        """Write the last lines."""
        if self.proxy.access_log is not None:
            await self._close_log(self.proxy.access_log)

    async def _close_log(self, one: AccessLog) -> None:
        await asyncio.to_thread(one.close)
        if one is not self.proxy.access_log:
            self.lines_lost_before += one.lost


@asynccontextmanager
async def serving(
    settings: Settings,
    listener: socket.socket,
    fleet: Fleet,
    routes: Routes,
    *,
    metrics: Metrics,
    worker: int = 0,
    shutdown_s: float,
) -> AsyncIterator[Serving]:
    """Serve agents while the block runs. Raises SettingsError."""
    gate, chosen = build_gate(settings), settings.sidecar
    async with AsyncExitStack() as stack:
        delivery = await stack.enter_async_context(
            Delivery(
                settings.otlp,
                SERVICE,
                chosen.data / "spool",
                spool_bytes=chosen.spool_bytes,
                fsync=chosen.spool_fsync == "interval",
                close_timeout_s=shutdown_s / 2,
                access=settings.otlp_access,
            )
        )
        session = await stack.enter_async_context(client_session())
        recorder = Recorder(delivery, metrics)
        stack.push_async_callback(recorder.close, CONFIRM_S)
        stored = ResponseStore(
            chosen.data / "responses.sqlite",
            max_count=chosen.stored_responses,
            max_bytes=chosen.stored_responses_bytes,
        )
        responses = StoreThread(stored)
        stack.push_async_callback(responses.close)
        prompts = Prompts(chosen.data)
        stack.callback(prompts.close)
        proxy = Proxy(routes, session, recorder, gate=gate, prompts=prompts, responses=responses)
        proxy.refusals, proxy.durations = metrics.refusals, metrics.durations
        proxy.access_log = open_access_log(chosen.access_log, worker)
        running = Serving(settings, worker, routes, fleet, proxy, recorder, metrics, delivery, stored)
        stack.push_async_callback(running.close_log)
        server = agents_server(proxy.handle, metrics.refusals)
        runner = web.ServerRunner(server, shutdown_timeout=shutdown_s + ENDING_S)
        stack.push_async_callback(_end, runner, proxy, shutdown_s)
        await runner.setup()
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        _settle()
        yield running


async def _end(runner: web.ServerRunner, proxy: Proxy, shutdown_s: float) -> None:
    """Take no new requests, and let those under way end, for `shutdown_s`; then end them."""
    cleanup = asyncio.create_task(runner.cleanup())
    done, _ = await asyncio.wait((cleanup,), timeout=shutdown_s)
    if not done:
        await proxy.end()
    await cleanup


def _settle() -> None:
    """Take what is there for good out of the garbage collector's sight, and let it look seldom: calls leave no cycles.

    Walking all objects of the program again and again costs a tenth of a call.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_EVERY, 20, 20)
