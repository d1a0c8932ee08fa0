"""The `tracegrad` command. Each subcommand is one module that imports its room only when it runs."""

import logging
import signal
import sys

import typer

from tracegrad.cli import (
    bench,
    collector,
    demo,
    doctor,
    export,
    import_,
    policy,
    prompt,
    reward,
    rollout,
    sidecar,
    sql,
    train,
    transitions,
    up,
)
from tracegrad.errors import TracegradError

INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    name="tracegrad",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Trains the AI agents you already run, from their OpenTelemetry traces.",
    epilog="Start with: tracegrad demo",
)
for module in (up, sidecar, collector, rollout, train, transitions, export, import_, sql, doctor, demo, bench):
    name = module.__name__.rpartition(".")[2].rstrip("_")
    app.command(name, epilog=module.EXAMPLE, no_args_is_help=False, **getattr(module, "COMMAND_OPTIONS", {}))(
        module.command
    )
for group in (reward, policy, prompt):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])


def main() -> None:
    """Run the command line: status 0 on success, 2 on bad usage, 1 with one line on stderr on failure."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    # What matters of theirs, our own errors say in one line. (The level of "urllib3" itself the store's driver sets.)
    for library in ("urllib3.connectionpool", "matplotlib"):
        logging.getLogger(library).setLevel(logging.ERROR)
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)  # its errors are tracebacks of what it raises
    try:
        app()
    except TracegradError as error:
        typer.echo(f"tracegrad: {error}", err=True)
        sys.exit(1)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # what typer makes of KeyboardInterrupt, without a word
            typer.echo("tracegrad: interrupted", err=True)
        raise
