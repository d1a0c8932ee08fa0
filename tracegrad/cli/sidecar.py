"""`tracegrad sidecar`."""

from typing import Annotated

import typer

from tracegrad import settings
from tracegrad.cli.options import ConfigFile

EXAMPLE = "Example: tracegrad sidecar --config tracegrad.toml"


def command(
    config: ConfigFile = None,
    port: Annotated[int | None, typer.Option(help="Port for agents (default 8088).")] = None,
    admin_port: Annotated[
        int | None, typer.Option(help="Port for policies, health and metrics (default 8089).")
    ] = None,
) -> None:
    """Run the proxy that captures every model call to the token."""
    chosen = settings.load(config).with_values("sidecar", port=port, admin_port=admin_port)
    from sidecar.server import run

    run(chosen)
