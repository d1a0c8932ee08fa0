"""`tracegrad collector`: one process that owns the store and serves OTLP/HTTP and ClickHouse HTTP until told to stop.

Both ports are taken before the store is opened, so that a second collector fails before it touches anything. On
SIGTERM or SIGINT: no new connections, requests in flight are finished, the store is closed.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from typing import Any

import uvloop
from aiohttp import web

from collector.clickhouse_http import ClickHouseHttp
from collector.engine import Engine
from collector.ingest import Ingest
from collector.migrations import migrate
from collector.otlp_http import OtlpHttp
from collector.signals import LOGS, TRACES
from tracegrad.errors import PortInUseError, SettingsError
from tracegrad.settings import Settings

log = logging.getLogger(__name__)

FINISH_S = 5.0
"""How long requests in flight may take after the signal to stop; statements that run longer are stopped."""
MAX_URL_BYTES = 1 << 20
"""SQL may be in the URL."""


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUseError, or TracegradError where the store cannot be opened."""
    chosen = settings.collector
    otlp = _bind(chosen.host, chosen.otlp_http_port, "the OTLP/HTTP receiver")
    try:
        clickhouse = _bind(chosen.host, chosen.clickhouse_port, "the ClickHouse HTTP interface")
    except BaseException:
        otlp.close()
        raise
    try:
        with Engine(chosen.data) as engine, contextlib.chdir(chosen.data):  # the engine caches schemas where it stands
            with engine.connection() as connection:
                migrate(connection)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(engine, chosen.host, otlp, clickhouse))
    finally:
        otlp.close()
        clickhouse.close()
    log.info("collector stopped data=%s", chosen.data)


async def _serve(engine: Engine, host: str, otlp: socket.socket, clickhouse: socket.socket) -> None:
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    traces, logs = Ingest(engine, TRACES), Ingest(engine, LOGS)
    sql = ClickHouseHttp(engine)
    runners = [
        _runner(OtlpHttp(traces, logs).application(host)),
        # The handler of a client that goes away is cancelled, so that its statement can be stopped.
        _runner(sql.application(host), handler_cancellation=True, max_line_size=MAX_URL_BYTES),
    ]
    try:
        for runner, listener in zip(runners, (otlp, clickhouse), strict=True):
            await runner.setup()
            await web.SockSite(runner, listener).start()
        log.info(
            "collector ready otlp_http=%s clickhouse=%s data=%s",
            _url(otlp),
            _url(clickhouse),
            engine.directory.absolute(),
        )
        await stop.wait()
        log.info("collector stopping")
    finally:
        await asyncio.gather(*(runner.cleanup() for runner in runners), sql.finish(FINISH_S))
        await asyncio.gather(traces.close(), logs.close(), sql.close())


def _runner(app: web.Application, **options: Any) -> web.AppRunner:
    # Bodies stay compressed until their handler, which knows how large they may become.
    return web.AppRunner(app, access_log=None, auto_decompress=False, shutdown_timeout=2 * FINISH_S, **options)


def _bind(host: str, port: int, what: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(what, host, port) from error
        raise SettingsError(f"cannot listen on {host} port {port} for {what}: {error.strerror}") from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
