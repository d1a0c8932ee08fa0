"""`tracegrad up`."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Annotated

import typer

from tracegrad import services, settings
from tracegrad.cli.options import ConfigFile

EXAMPLE = "Example: tracegrad up --model ./my-model"


def command(
    config: ConfigFile = None,
    model: Annotated[Path | None, typer.Option(help="Model directory: also start vLLM with it.", metavar="DIR")] = None,
    vllm_port: Annotated[int | None, typer.Option(help="Port of that vLLM (default 8000).")] = None,
    logs: Annotated[Path, typer.Option(help="Directory for the logs of the services.")] = settings.DATA / "logs",
) -> None:
    """Start collector, sidecar and, with --model, vLLM. One Ctrl-C stops them all."""
    chosen = settings.load(config).with_values("vllm", port=vllm_port)
    engine = services.Engine(model) if model else None
    asyncio.run(_run(chosen, services.services(chosen, config, engine), logs))


async def _run(chosen: settings.Settings, processes: list[services.Service], logs: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    running = asyncio.create_task(_serve(chosen, processes, logs))
    await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done():
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    else:
        running.result()


async def _serve(chosen: settings.Settings, processes: list[services.Service], logs: Path) -> None:
    from tracegrad.clickhouse import shown

    async with services.Running(processes, logs, typer.echo) as running:
        sidecar = f"http://{chosen.sidecar.host}:{chosen.sidecar.port}/v1"
        typer.echo(
            f"ask it anything:  tracegrad sql 'SHOW TABLES'   (ClickHouse over HTTP: {shown(chosen.clickhouse)})"
        )
        elsewhere = f"OTEL_EXPORTER_OTLP_ENDPOINT={chosen.otlp} " if chosen.otlp != settings.Settings().otlp else ""
        run = f"OPENAI_BASE_URL={sidecar} {elsewhere}opentelemetry-instrument python my_agent.py"
        typer.echo(f"run your agent:   {run}")
        typer.echo("stop with Ctrl-C")
        await running.watch()
