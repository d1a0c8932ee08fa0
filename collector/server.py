"""`tracegrad collector`: one process that owns the store and serves OTLP and ClickHouse HTTP until told to stop.

All ports are taken before the store is opened, so that a second collector fails before it touches anything. On
SIGTERM or SIGINT: no new connections, requests in flight are finished, the store is closed.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from collector.clickhouse_http import ClickHouseHttp
from collector.clickhouse_users import Users, writer_password
from collector.guard import is_loopback
from collector.http_limits import LINGER_S, ServerLog
from collector.open_store import OpenStore, open_store
from collector.otlp_grpc import OtlpGrpc
from collector.otlp_http import OtlpHttp
from collector.pipeline import Pipeline, pipeline
from collector.ports import Ports, port_of, shown, taken
from collector.receiver import Receiver
from collector.tls import Tls, load_tls
from tracegrad.settings import CollectorSettings, Settings

log = logging.getLogger(__name__)

FINISH_S = 5.0
"""How long requests in flight may take after the signal to stop; statements that run longer are stopped."""
MAX_URL_BYTES = 1 << 20
"""SQL may be in the URL."""


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUseError, or TracegradError where the store cannot be opened."""
    chosen = _absolute(settings.collector)
    token, tls = None if chosen.secret is None else chosen.secret.read(), load_tls(chosen)
    if token is None and not is_loopback(chosen.host):
        log.warning("whoever reaches %s may send: set token of [collector], or keep the port private", chosen.host)
    with (
        taken(chosen) as ports,
        open_store(chosen) as opened,
        pipeline(chosen, opened.store) as road,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_Serving(chosen, ports, opened, road, token, tls).serve())
    log.info("collector stopped data=%s", chosen.data)


def _absolute(chosen: CollectorSettings) -> CollectorSettings:
    """With whole paths: the process goes to stand in its store."""
    paths = {name: value.absolute() for name, value in chosen if isinstance(value, Path)}
    return chosen.model_copy(update=paths)


@dataclass(frozen=True)
class _Serving:
    chosen: CollectorSettings
    ports: Ports
    opened: OpenStore
    road: Pipeline
    token: str | None
    tls: Tls | None

    async def serve(self) -> None:
        stop = asyncio.Event()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
        ingests = self.road.ingests()
        receiver = Receiver(
            ingests,
            token=self.token,
            max_body_bytes=self.chosen.max_body_bytes,
            warning=lambda: self.road.problem,
        )
        self.road.start()
        try:
            async with self._sql(), self._otlp(receiver) as grpc_port:
                scheme = "http" if self.tls is None else "https"
                host, ports = self.ports.host, self.ports
                log.info(
                    "collector ready otlp_http=%s clickhouse=%s otlp_grpc=%s data=%s store=%s",
                    shown(host, port_of(ports.otlp_http), scheme),
                    "-" if ports.clickhouse is None else shown(host, port_of(ports.clickhouse), scheme),
                    shown(host, grpc_port, scheme),
                    self.chosen.data.absolute(),
                    self.opened.store.name,
                )
                await stop.wait()
                log.info("collector stopping")
                receiver.stopping = True
        finally:
            await asyncio.gather(*(ingest.close() for ingest in ingests))
            await self.road.stop()

    @asynccontextmanager
    async def _otlp(self, receiver: Receiver) -> AsyncIterator[int]:
        """Both transports; the port of gRPC."""
        http, grpc = _runner(OtlpHttp(receiver, self.road.delivered).application(self.ports.host)), OtlpGrpc(receiver)
        try:
            await http.setup()
            context = None if self.tls is None else self.tls.context
            await web.SockSite(http, self.ports.otlp_http, ssl_context=context).start()
            grpc_port = self.ports.released()
            await grpc.start(self.ports.host, grpc_port, self.tls)
            yield grpc_port
        finally:
            await asyncio.gather(http.cleanup(), grpc.stop(FINISH_S))

    @asynccontextmanager
    async def _sql(self) -> AsyncIterator[None]:
        """SQL over HTTP, where the store is in this process; a server answers for itself."""
        if self.opened.engine is None or self.ports.clickhouse is None:
            yield
            return
        users = Users(writer_password(self.chosen.writer_secret, self.chosen.data))
        sql = ClickHouseHttp(self.opened.engine, users)
        # The handler of a client that goes away is cancelled, so that its statement can be stopped.
        runner = _runner(sql.application(self.ports.host), handler_cancellation=True, max_line_size=MAX_URL_BYTES)
        try:
            await runner.setup()
            context = None if self.tls is None else self.tls.context
            await web.SockSite(runner, self.ports.clickhouse, ssl_context=context).start()
            yield
        finally:
            await asyncio.gather(runner.cleanup(), sql.finish(FINISH_S))
            await sql.close()


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
