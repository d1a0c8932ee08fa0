"""Start collector, sidecar and vLLM as processes of their own, wait until they answer, and stop them in order.

Invariants: nothing is started while a port is taken; a service that dies takes the others down, and the end of its
log is shown; the collector stops last, so that what the others still hold is delivered; when this process is
killed the kernel asks the services to stop.
"""

import asyncio
import contextlib
import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import aiohttp

from tracegrad.errors import PortInUseError, SettingsError, TracegradError
from tracegrad.settings import DEFAULT_POLICY, Settings

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.25
LOG_TAIL_LINES = 15
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)

VLLM_ARGUMENTS = (
    "--enforce-eager",
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    "--generation-config=vllm",
    '--weight-transfer-config={"backend":"file"}',
    "--disable-uvicorn-access-log",
)
"""What every engine gets: tool calls parsed, sampling defaults that are neutral, weights swapped through files."""

VLLM_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # the endpoints that pause, update and resume
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": "0",  # where strict tools constrain tokens, their calls do not train
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


@dataclass(frozen=True)
class Engine:
    """The vLLM to start: a model directory, and further arguments and environment of vLLM."""

    model: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Service:
    """One process: how to start it, and the URL that answers 200 when it is ready."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    host: str
    ports: tuple[int, ...]
    ready_url: str


def services(settings: Settings, config: Path | None, engine: Engine | None) -> list[Service]:
    """The processes of `tracegrad up`, in the order in which they start."""
    options = ("--config", str(config)) if config else ()
    tracegrad = (sys.executable, "-m", "tracegrad")
    collector, sidecar = settings.collector, settings.sidecar
    shared = as_environment(settings)
    otlp = (collector.otlp_http_port, collector.otlp_grpc_port)
    scheme = "https" if collector.tls_cert else "http"
    if collector.server is None:
        ports: tuple[int, ...] = (*otlp, collector.clickhouse_port)
        ready = f"{scheme}://{collector.host}:{collector.clickhouse_port}/ping"
    else:  # who wants SQL asks the server: that port stays closed
        ports = otlp
        ready = f"{scheme}://{collector.host}:{collector.otlp_http_port}/healthz"
    chosen = [Service("collector", (*tracegrad, "collector", *options), shared, collector.host, ports, ready)]
    if engine is not None:
        chosen.append(_vllm(settings, engine))
    return [
        *chosen,
        Service(
            "sidecar",
            (*tracegrad, "sidecar", *options),
            shared,
            sidecar.host,
            (sidecar.port, sidecar.admin_port),
            # With an engine of ours, ready means that its version is known; otherwise its upstreams may come later.
            f"http://{sidecar.admin_host}:{sidecar.admin_port}/{'readyz' if engine else 'healthz'}",
        ),
    ]


def _vllm(settings: Settings, engine: Engine) -> Service:
    if importlib.util.find_spec("vllm") is None:
        raise SettingsError(
            "vLLM is not installed here: `make install`, or leave out --model and name your engine in [[model]]"
        )
    if not (engine.model / "config.json").exists():
        raise SettingsError(f"no model at {engine.model}: --model is a directory with config.json and weights")
    host, port = settings.vllm.host, settings.vllm.port
    served = next((route.name for route in settings.routes if route.policy and route.name != "*"), DEFAULT_POLICY)
    argv = (
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={engine.model}",
        f"--served-model-name={served}",
        f"--host={host}",
        f"--port={port}",
        *VLLM_ARGUMENTS,
        *settings.vllm.args,
        *engine.arguments,
    )
    environment = {**VLLM_ENVIRONMENT, **engine.environment}
    return Service("vllm", argv, environment, host, (port,), f"http://{host}:{port}/health")


PLACES = {
    "host",
    "port",
    "admin_host",
    "admin_port",
    "otlp_http_port",
    "otlp_grpc_port",
    "clickhouse_port",
    "data",
    "weights",
}
"""Settings that processes need in order to find each other. What may change in a running sidecar is none of these."""


def as_environment(settings: Settings) -> dict[str, str]:
    """Where everything is, as environment variables for our own processes. The rest, and keys, stay in the file."""
    values = {
        f"TRACEGRAD_{section}_{name}".upper(): str(value)
        for section in ("collector", "sidecar", "vllm")
        for name, value in getattr(settings, section).model_dump(include=PLACES).items()
    }
    addresses = ["clickhouse", "otlp", "sidecar_url", "sidecar_admin_url"]
    if settings.collector.server is not None and "clickhouse" not in settings.model_fields_set:
        addresses.remove("clickhouse")  # it may hold the store's password; each process finds it as this one did
    return values | {f"TRACEGRAD_{name}".upper(): getattr(settings, name) for name in addresses}


def require_free(host: str, port: int, what: str) -> None:
    """Raise PortInUseError when something listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUseError(what, host, port) from error


Report = Callable[[str], None]


class Running:
    """`async with Running(...)`: all services ready inside the block, all stopped after it.

    `report` is told, in words, what is being waited for; `logs` is where each service's output goes.
    """

    def __init__(self, chosen: list[Service], logs: Path, report: Report) -> None:
        self._services = chosen
        self._logs = logs
        self._report = report
        self._processes: list[tuple[Service, subprocess.Popen[bytes]]] = []

    async def __aenter__(self) -> "Running":
        ports = [port for service in self._services for port in service.ports]
        if 0 in ports or len(set(ports)) < len(ports):
            raise SettingsError(f"every port must be given, and differ from the others: {ports}")
        for service in self._services:
            for port in service.ports:
                require_free(service.host, port, service.name)
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"logs cannot be kept in {self._logs}: {error.strerror}") from error
        try:
            for service in self._services:
                self._start(service)
            for service in self._services:
                await self._wait_ready(service)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def watch(self) -> None:
        """Wait until a service dies; then report the end of its log and raise TracegradError."""
        while True:
            self._check_alive()
            await asyncio.sleep(POLL_S)

    def log_of(self, name: str) -> Path:
        """The file that holds the output of the service `name`."""
        return self._logs / f"{name}.log"

    def _start(self, service: Service) -> None:
        log = self.log_of(service.name)
        if log.exists():
            log.replace(log.with_suffix(".log.1"))  # what the last one died of stays readable
        with log.open("wb") as output:
            process = subprocess.Popen(
                service.argv,
                env=os.environ | service.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us; we stop the services in order
                preexec_fn=_stop_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one C call
            )
        self._processes.append((service, process))

    async def _wait_ready(self, service: Service) -> None:
        started = time.monotonic()
        reported = started
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while not await _answers(session, service.ready_url):
                self._check_alive()
                now = time.monotonic()
                if now - started > START_TIMEOUT_S:
                    self._show_log(service)
                    raise TracegradError(
                        f"{service.name} is not ready after {START_TIMEOUT_S:.0f} s: see {self.log_of(service.name)}"
                    )
                if now - reported > 10:
                    reported = now
                    self._report(f"{service.name} is starting, {now - started:.0f} s")
                await asyncio.sleep(POLL_S)
        self._report(f"{service.name} is ready ({time.monotonic() - started:.1f} s)")

    def _check_alive(self) -> None:
        for service, process in self._processes:
            if process.poll() is not None:
                self._show_log(service)
                raise TracegradError(
                    f"{service.name} stopped with status {process.returncode}: see {self.log_of(service.name)}"
                )

    def _show_log(self, service: Service) -> None:
        """Report the end of a service's log."""
        for line in self.log_of(service.name).read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]:
            self._report(f"  {service.name}: {line}")

    async def _stop(self) -> None:
        order = {"sidecar": 0, "vllm": 1, "collector": 2}
        for service, process in sorted(self._processes, key=lambda pair: order.get(pair[0].name, 1)):
            await _stop_group(process)
            self._report(f"{service.name} stopped")
        self._processes.clear()


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, ssl=False) as response:  # whether it is up, whoever vouches for its certificate
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the leader, then SIGKILL to whatever of its session is left."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _stop_with_parent() -> None:
    """In the child, before exec: be asked to stop when the parent dies, however it dies."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
