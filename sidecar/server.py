"""The sidecar process: both ports, the watch over the engines, and an orderly end.

At the end no new connection is taken, calls in flight may finish for `SHUTDOWN_S`, and every span is sent, for at most
half of that. What is cut off is recorded as `aborted`; what cannot be sent is counted and logged.
"""

import asyncio
import errno
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import uvloop
from aiohttp import web

from sidecar.admin import Admin
from sidecar.background import running
from sidecar.board import Board
from sidecar.catch_up import kept_current
from sidecar.continuation.watch import examined
from sidecar.forward import client_session, control_session
from sidecar.gate import build_gate
from sidecar.metrics import Metrics
from sidecar.prompt_store import PromptStore
from sidecar.prompts import Prompts
from sidecar.proxy import Proxy
from sidecar.publications import Publications
from sidecar.publish import Publisher
from sidecar.recorder import Recorder
from sidecar.responses.store import ResponseStore
from sidecar.routes import Routes, build_routes, policy_engines
from tracegrad.errors import PortInUseError, TracegradError
from tracegrad.otlp import OtlpSender
from tracegrad.settings import Settings

log = logging.getLogger(__name__)

SERVICE = "tracegrad.sidecar"
SHUTDOWN_S = 20.0
MAX_BATCH_BYTES = 1 << 20
"""Of spans in one export: agents wait while one is put together."""
FIRST_ANSWER_S = 2.0
CONFIRM_S = 5.0


@dataclass(frozen=True)
class Ports:
    """Where a running sidecar listens."""

    port: int
    admin_port: int


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUseError and SettingsError."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings))


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_once() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # a second signal ends the process at once

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_once)
    async with serve(settings) as ports:
        log.info("sidecar ready port=%d admin_port=%d", ports.port, ports.admin_port)
        await stop.wait()
        log.info("sidecar stopping")


@asynccontextmanager
async def serve(settings: Settings, *, shutdown_s: float = SHUTDOWN_S) -> AsyncIterator[Ports]:
    """A sidecar that serves while the block runs."""
    board = Board.memory(len(policy_engines(settings)))
    routes = build_routes(settings, board)
    publications = Publications(settings.sidecar.data)
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        sender = await stack.enter_async_context(
            OtlpSender(settings.otlp, SERVICE, max_batch_bytes=MAX_BATCH_BYTES, close_timeout_s=shutdown_s / 2)
        )
        session = await stack.enter_async_context(client_session())
        control = await stack.enter_async_context(control_session())
        publisher = Publisher(control, settings.sidecar.weights, publications)
        await stack.enter_async_context(kept_current(publisher, routes.policies.values(), board))
        await stack.enter_async_context(_watched(routes, control))
        await stack.enter_async_context(examined(routes.continued, control))
        recorder = Recorder(sender, metrics)
        stack.push_async_callback(recorder.close, CONFIRM_S)
        responses = ResponseStore(
            settings.sidecar.data / "responses.sqlite",
            max_count=settings.sidecar.stored_responses,
            max_bytes=settings.sidecar.stored_responses_bytes,
        )
        stack.callback(responses.close)
        prompts = Prompts(settings.sidecar.data)
        stack.callback(prompts.close)
        proxy = Proxy(routes, session, recorder, gate=build_gate(settings), prompts=prompts, responses=responses)
        admin = Admin(routes, control, publisher, metrics, sender, prompts=PromptStore(settings.sidecar.data))
        host = settings.sidecar.host
        admin_runner = web.AppRunner(admin.application(), access_log=None, shutdown_timeout=shutdown_s)
        admin_port = await _listen(stack, admin_runner, host, settings.sidecar.admin_port)
        runner = web.AppRunner(
            proxy.application(), access_log=None, handler_cancellation=True, shutdown_timeout=shutdown_s
        )
        port = await _listen(stack, runner, host, settings.sidecar.port)
        try:
            yield Ports(port, admin_port)
        finally:
            proxy.stopping = True


@asynccontextmanager
async def _watched(routes: Routes, session: aiohttp.ClientSession) -> AsyncIterator[None]:
    """Ask every replica for its version, again and again."""
    replicas = [replica for policy in routes.policies.values() for replica in policy.replicas]
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await stack.enter_async_context(running(replica.watch(session), f"watch {replica.url}"))
        if replicas:
            first = [asyncio.create_task(replica.confirmed()) for replica in replicas]
            await asyncio.wait(first, timeout=FIRST_ANSWER_S)
        yield


async def _listen(stack: AsyncExitStack, runner: web.AppRunner, host: str, port: int) -> int:
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError("the sidecar", host, port) from error
        raise TracegradError(f"the sidecar cannot listen on {host}:{port} ({error}): choose another address") from error
    return int(runner.addresses[0][1])
