"""`tracegrad sql`."""

import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Annotated

import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.errors import SettingsError, TracegradError, UnreachableError

EXAMPLE = 'Example: tracegrad sql "SELECT status, count() FROM rollouts GROUP BY status"'


def command(
    query: Annotated[str, typer.Argument(help="ClickHouse SQL; `-` reads it from standard input.")],
    config: ConfigFile = None,
    as_json: AsJson = False,
    output_format: Annotated[
        str | None, typer.Option("--format", help="Any ClickHouse output format, e.g. CSVWithNames.")
    ] = None,
) -> None:
    """Ask the store anything. The database is `otel`; a FORMAT clause in the query wins."""
    url = settings.load(config).clickhouse
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"bad setting clickhouse: {url!r} is not an http:// address")
    text = sys.stdin.read() if query == "-" else query
    default = output_format or ("JSONEachRow" if as_json else "PrettyCompactMonoBlock")
    parameters = {"default_format": default, "database": "otel"}
    if not as_json and sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        parameters["output_format_pretty_color"] = "1"
    target = f"{url.rstrip('/')}/?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(target, data=text.encode()) as answer:  # noqa: S310 - the scheme was checked
            while chunk := answer.read(1 << 16):
                sys.stdout.buffer.write(chunk)
    except urllib.error.HTTPError as error:
        raise TracegradError(f"ClickHouse: {error.read().decode(errors='replace').strip()}") from error
    except (urllib.error.URLError, OSError) as error:
        raise UnreachableError(
            f"no store at {url} ({error}): start one with `tracegrad up` or `tracegrad collector`"
        ) from error
    sys.stdout.flush()
