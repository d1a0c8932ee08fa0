"""`tracegrad collector`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tracegrad import settings
from tracegrad.cli.options import ConfigFile
from tracegrad.errors import SettingsError

EXAMPLE = "Example: tracegrad collector --data .tracegrad/store"


def command(
    *,
    config: ConfigFile = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the embedded ClickHouse store.")] = None,
    otlp_http_port: Annotated[int | None, typer.Option(help="OTLP/HTTP port (default 4318).")] = None,
    otlp_grpc_port: Annotated[int | None, typer.Option(help="OTLP/gRPC port (default 4317).")] = None,
    clickhouse_port: Annotated[int | None, typer.Option(help="ClickHouse HTTP port (default 8123).")] = None,
    store: Annotated[
        str | None, typer.Option(help="`chdb`, or a server: clickhouse://user@host:8123/otel?secure=1", metavar="URL")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="The server's cluster whose replicas get the tables.")] = None,
    ttl: Annotated[str | None, typer.Option(help="How long telemetry is kept: 12h, 30d, 4w or forever.")] = None,
    print_schema: Annotated[
        bool, typer.Option("--print-schema", help="Print the SQL that makes the schema, and start nothing.")
    ] = False,
) -> None:
    """Receive OTLP into ClickHouse, embedded or a server, and answer SQL over HTTP.

    The embedded one's user `default` only reads; `writer` also writes, with the password in DATA/writer.password.
    """
    if store and "@" in store and ":" in store.partition("://")[2].rpartition("@")[0]:
        raise SettingsError(
            "--store holds a password, which every user of this machine could see: "
            "leave it out and set TRACEGRAD_COLLECTOR_STORE_PASSWORD or store_password_file"
        )
    chosen = settings.load(config).with_values(
        "collector",
        data=data,
        otlp_http_port=otlp_http_port,
        otlp_grpc_port=otlp_grpc_port,
        clickhouse_port=clickhouse_port,
        store=store,
        cluster=cluster,
        ttl=ttl,
    )
    if print_schema:
        from collector.open_store import schema_of

        typer.echo(schema_of(chosen.collector).text(), nl=False)
        return
    # Read when grpc is imported, whose library else reports every broken TLS connection, in a form of its own.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from collector.server import run

    run(chosen)
