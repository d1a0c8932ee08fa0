"""`tracegrad sidecar`."""

from typing import Annotated

import typer

from tracegrad import settings
from tracegrad.cli.options import ConfigFile
from tracegrad.configuration import Configuration

EXAMPLE = "Example: tracegrad sidecar --config tracegrad.toml --workers 4"


def command(
    config: ConfigFile = None,
    port: Annotated[int | None, typer.Option(help="Port for agents (default 8088).")] = None,
    admin_port: Annotated[
        int | None, typer.Option(help="Port for policies, health and metrics (default 8089).")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that share the agents' port (default 1).", min=1)
    ] = None,
) -> None:
    """Run the proxy that captures every model call to the token.

    SIGHUP reads the configuration again. SIGTERM ends it when calls in flight have ended, a second one at once.
    """
    configuration = Configuration(config)

    def read() -> settings.Settings:
        return configuration.read().with_values("sidecar", port=port, admin_port=admin_port, workers=workers)

    chosen = read()
    from sidecar.server import run

    run(chosen, read)
