"""`tracegrad collector`: one process that owns the store and serves OTLP and ClickHouse HTTP until told to stop.

All ports are taken before the store is opened, so that a second collector fails before it touches anything. On
SIGTERM or SIGINT: no new connections, requests in flight are finished, the store is closed.
"""

import asyncio
import contextlib
import logging
import signal
from typing import Any

import uvloop
from aiohttp import web

from collector.clickhouse_http import ClickHouseHttp
from collector.engine import Engine
from collector.guard import is_loopback
from collector.http_limits import LINGER_S, ServerLog
from collector.ingest import Ingest
from collector.migrations import migrate
from collector.otlp_grpc import OtlpGrpc
from collector.otlp_http import OtlpHttp
from collector.ports import Ports, port_of, shown, taken
from collector.receiver import Receiver
from collector.signals import LOGS, METRICS, TRACES
from collector.tls import Tls, load_tls
from tracegrad.settings import Settings

log = logging.getLogger(__name__)

FINISH_S = 5.0
"""How long requests in flight may take after the signal to stop; statements that run longer are stopped."""
MAX_URL_BYTES = 1 << 20
"""SQL may be in the URL."""


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUseError, or TracegradError where the store cannot be opened."""
    chosen = settings.collector
    token, tls = None if chosen.secret is None else chosen.secret.read(), load_tls(chosen)
    if token is None and not is_loopback(chosen.host):
        log.warning("whoever reaches %s may send: set token of [collector], or keep the port private", chosen.host)
    with (
        taken(chosen) as ports,
        Engine(chosen.data) as engine,
        contextlib.chdir(chosen.data),  # the engine caches schemas where it stands
    ):
        with engine.connection() as connection:
            migrate(connection)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(engine, ports, token, tls, chosen.max_body_bytes))
    log.info("collector stopped data=%s", chosen.data)


async def _serve(engine: Engine, ports: Ports, token: str | None, tls: Tls | None, max_body_bytes: int) -> None:
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    ingests = [Ingest(engine, kind) for kind in (TRACES, LOGS, METRICS)]
    receiver = Receiver(ingests, token=token, max_body_bytes=max_body_bytes)
    sql, otlp_grpc = ClickHouseHttp(engine), OtlpGrpc(receiver)
    otlp_http = _runner(OtlpHttp(receiver).application(ports.host))
    # The handler of a client that goes away is cancelled, so that its statement can be stopped.
    clickhouse = _runner(sql.application(ports.host), handler_cancellation=True, max_line_size=MAX_URL_BYTES)
    try:
        await otlp_http.setup()
        await web.SockSite(otlp_http, ports.otlp_http, ssl_context=None if tls is None else tls.context).start()
        await clickhouse.setup()
        await web.SockSite(clickhouse, ports.clickhouse).start()
        grpc_port = ports.released()
        await otlp_grpc.start(ports.host, grpc_port, tls)
        scheme = "http" if tls is None else "https"
        log.info(
            "collector ready otlp_http=%s clickhouse=%s otlp_grpc=%s data=%s",
            shown(ports.host, port_of(ports.otlp_http), scheme),
            shown(ports.host, port_of(ports.clickhouse)),
            shown(ports.host, grpc_port, scheme),
            engine.directory.absolute(),
        )
        await stop.wait()
        log.info("collector stopping")
        receiver.stopping = True
    finally:
        await asyncio.gather(otlp_http.cleanup(), otlp_grpc.stop(FINISH_S), clickhouse.cleanup(), sql.finish(FINISH_S))
        await asyncio.gather(*(ingest.close() for ingest in ingests), sql.close())


def _runner(app: web.Application, **options: Any) -> web.AppRunner:
    # Bodies stay compressed until their handler, which knows how large they may become.
    return web.AppRunner(
        app,
        access_log=None,
        logger=ServerLog(),
        auto_decompress=False,
        lingering_time=LINGER_S,
        shutdown_timeout=2 * FINISH_S,
        **options,
    )
