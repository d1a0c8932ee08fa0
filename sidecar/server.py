"""The sidecar process: both ports, signals, an orderly end.

Ports are taken before anything else, so that one in use is told at once; agents may connect from then on, and their
calls wait for their engine. SIGTERM or SIGINT end in order; a second one at once, when what is in flight is recorded as
aborted. SIGHUP reloads the configuration.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from sidecar.admin import Admin
from sidecar.catch_up import kept_current
from sidecar.data_lock import data_lock
from sidecar.fleet import looked_after, memory_places
from sidecar.forward import control_session
from sidecar.http_server import operators_runner
from sidecar.listen import claim, port_of, share
from sidecar.metrics import Metrics
from sidecar.operation import Again, Alone, Main, Operation, warn_of_risks
from sidecar.prompt_store import PromptStore
from sidecar.publications import Publications
from sidecar.publish import Publisher
from sidecar.serving import serving
from sidecar.shared_board import shared_board
from sidecar.supervisor import Supervisor, check, shown_to_workers
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
ABANDON_S = 5.0
"""Longer than it takes to write down what is in flight, unless something hangs."""


@dataclass(frozen=True)
class _Start:
    """What both process models start from."""

    settings: Settings
    again: Again | None
    agents: socket.socket
    operators: socket.socket
    control: aiohttp.ClientSession
    publisher: Publisher
    shutdown_s: float

    @property
    def ports(self) -> tuple[int, int]:
        """Where it listens."""
        return port_of(self.agents), port_of(self.operators)


def run(settings: Settings, again: Again | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUseError and SettingsError."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each call takes two files
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, again))


async def _run(settings: Settings, again: Again | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    served: list[Operation] = []

    def end(number: signal.Signals) -> None:
        if not stop.is_set():
            stop.set()
            return
        for one in SIGNALS:
            loop.remove_signal_handler(one)  # a third one does not even wait for that
        task = asyncio.create_task(_abandon(served, number), name="abandon")
        tasks.add(task)

    for number in SIGNALS:
        loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # not ready yet
    async with serve(settings, again=again) as running:
        served.append(running)

        def reload() -> None:
            task = asyncio.create_task(_reload(running), name="reload")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)
        log.info("sidecar ready port=%d admin_port=%d", running.port, running.admin_port)
        await stop.wait()
        log.info("sidecar stopping")


async def _abandon(served: list[Operation], number: signal.Signals) -> None:
    """Record what is in flight, and die of the signal."""
    log.warning("sidecar stops at once: calls in flight are recorded as aborted")
    try:
        async with asyncio.timeout(ABANDON_S):
            for running in served:
                await running.abandon()
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


async def _reload(running: Operation) -> None:
    try:
        await running.reload()
    except TracegradError as error:
        log.error("configuration not reloaded, the old one stays: %s", error)  # noqa: TRY400 - one line says it all


@asynccontextmanager
async def serve(
    settings: Settings, *, again: Again | None = None, shutdown_s: float | None = None
) -> AsyncIterator[Operation]:
    """A sidecar that serves while the block runs. `again`: where a reload gets its settings."""
    chosen = settings.sidecar
    warn_of_risks(settings)
    start = _alone if chosen.workers == 1 else _with_workers
    async with AsyncExitStack() as stack:
        agents = stack.enter_context(closing(claim(chosen.host, chosen.port, shared=chosen.reuse_port)))
        operators = stack.enter_context(closing(claim(chosen.admin_host, chosen.admin_port, shared=chosen.reuse_port)))
        stack.enter_context(data_lock(chosen.data, shared=chosen.reuse_port))
        control = await stack.enter_async_context(control_session())
        publisher = Publisher(control, chosen.weights, Publications(chosen.data))
        limit_s = chosen.shutdown_s if shutdown_s is None else shutdown_s
        yield await start(stack, _Start(settings, again, agents, operators, control, publisher, limit_s))


async def _alone(stack: AsyncExitStack, start: _Start) -> Operation:
    settings = start.settings
    board, places = memory_places(settings)
    fleet, routes = await stack.enter_async_context(
        looked_after(settings, start.control, board, places, start.publisher)
    )
    metrics = Metrics()
    admin = Admin(routes, start.control, start.publisher, metrics, prompts=PromptStore(settings.sidecar.data))
    listen = _admin_site(stack, admin, metrics, start.operators, start.shutdown_s)
    one = await stack.enter_async_context(
        serving(settings, start.agents, fleet, routes, metrics=metrics, shutdown_s=start.shutdown_s)
    )
    operation = Alone(settings, start.again, start.ports, admin, serving=one)
    await listen()
    await fleet.first_answers()
    return operation


async def _with_workers(stack: AsyncExitStack, start: _Start) -> Operation:
    settings = start.settings
    check(settings)
    shared = stack.enter_context(shared_board(settings))
    # So that workers see that the publisher lives.
    await stack.enter_async_context(kept_current(start.publisher, (), shared.board))
    fleet, routes = await stack.enter_async_context(
        looked_after(settings, start.control, shared.board, shared.places, start.publisher)
    )
    metrics = Metrics()
    admin = Admin(routes, start.control, start.publisher, metrics, prompts=PromptStore(settings.sidecar.data))
    listen = _admin_site(stack, admin, metrics, start.operators, start.shutdown_s)
    share(start.agents)
    hello = {
        "settings": shown_to_workers(settings),
        "port": start.ports[0],
        "places": dict(shared.places),
        "board": str(shared.file),
        "shutdown_s": start.shutdown_s,
    }
    supervisor = Supervisor(settings, hello, shared.board, start.shutdown_s)
    operation = Main(
        settings,
        start.again,
        start.ports,
        admin,
        supervisor=supervisor,
        fleet=fleet,
        routes=routes,
        board=shared,
        metrics=metrics,
    )
    stack.push_async_callback(supervisor.stop)
    await supervisor.start()
    await listen()
    await fleet.first_answers()
    return operation


def _admin_site(
    stack: AsyncExitStack, admin: Admin, metrics: Metrics, operators: socket.socket, shutdown_s: float
) -> Callable[[], Coroutine[Any, Any, None]]:
    """The admin port, which closes after the agents' and opens when the result is called."""
    runner = operators_runner(admin.application(), metrics.refusals, shutdown_s)
    stack.push_async_callback(runner.cleanup)

    async def listen() -> None:
        await runner.setup()
        await web.SockSite(runner, operators).start()

    return listen
