"""`tracegrad sql`."""

import os
import sys
import urllib.error
import urllib.request
from http.client import HTTPResponse
from typing import Annotated
from urllib.parse import unquote, urlencode, urlsplit

import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.errors import TracegradError, UnreachableError
from tracegrad.loopback import open_url
from tracegrad.store_tls import context_of

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
    text = sys.stdin.buffer.read() if query == "-" else query.encode()
    default = output_format or ("JSONEachRow" if as_json else "PrettyCompactMonoBlock")
    colors = not as_json and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    with _ask(url, text, {"default_format": default, "output_format_pretty_color": str(int(colors))}) as answer:
        try:
            while chunk := answer.read(1 << 16):
                sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ask(url: str, query: bytes, parameters: dict[str, str]) -> HTTPResponse:
    """The running answer of ClickHouse's HTTP interface, which chooses formats better than a driver would."""
    parts = urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path or "/")
    target = bare._replace(query=urlencode({"database": "otel"} | parameters)).geturl()
    request = urllib.request.Request(target, query)  # noqa: S310 - the settings hold only http addresses
    if parts.username:
        request.add_header("X-ClickHouse-User", unquote(parts.username))
        request.add_header("X-ClickHouse-Key", unquote(parts.password or ""))
    try:
        return open_url(request, tls=context_of(url))
    except urllib.error.HTTPError as error:
        raise TracegradError(f"ClickHouse: {error.read().decode(errors='replace').strip()}") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        address = f"{bare.scheme}://{bare.netloc}"
        raise UnreachableError(
            f"no store at {address} ({reason}): start one with `tracegrad collector`, or set TRACEGRAD_CLICKHOUSE"
        ) from error
