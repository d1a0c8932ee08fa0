"""`tracegrad collector`."""

from pathlib import Path
from typing import Annotated

import typer

from tracegrad import settings
from tracegrad.cli.options import ConfigFile

EXAMPLE = "Example: tracegrad collector --data .tracegrad/store"


def command(
    config: ConfigFile = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the embedded ClickHouse store.")] = None,
    otlp_http_port: Annotated[int | None, typer.Option(help="OTLP/HTTP port (default 4318).")] = None,
    otlp_grpc_port: Annotated[int | None, typer.Option(help="OTLP/gRPC port (default 4317).")] = None,
    clickhouse_port: Annotated[int | None, typer.Option(help="ClickHouse HTTP port (default 8123).")] = None,
) -> None:
    """Receive OTLP into the embedded ClickHouse and answer SQL over HTTP."""
    chosen = settings.load(config).with_values(
        "collector",
        data=data,
        otlp_http_port=otlp_http_port,
        otlp_grpc_port=otlp_grpc_port,
        clickhouse_port=clickhouse_port,
    )
    from collector.server import run

    run(chosen)
