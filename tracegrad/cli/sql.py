"""`tracegrad sql`."""

import os
import sys
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Annotated
from urllib.parse import unquote, urlencode, urlsplit

import typer

from tracegrad import settings
from tracegrad.cli.options import AsJson, ConfigFile
from tracegrad.errors import TracegradError, UnreachableError
from tracegrad.loopback import open_url
from tracegrad.no_answer import NoAnswer, no_answer
from tracegrad.store_tls import context_of

_ADVICE = {
    NoAnswer.WANTS_TLS: "write https:// in TRACEGRAD_CLICKHOUSE",
    NoAnswer.NO_TLS: "write http:// in TRACEGRAD_CLICKHOUSE",
    NoAnswer.NOT_TRUSTED: "add ?ca_cert=FILE to TRACEGRAD_CLICKHOUSE, or set otlp_ca for a collector of your own",
    NoAnswer.WANTS_CERTIFICATE: "add client_cert and client_cert_key to TRACEGRAD_CLICKHOUSE, or set otlp_cert and "
    "otlp_key for a collector of your own",
    NoAnswer.CLOSED: "ask again, or check TRACEGRAD_CLICKHOUSE, with https:// if it wants TLS",
}
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
        except HTTPException as error:
            raise UnreachableError("the store's answer broke off: ask again") from error


def _ask(url: str, query: bytes, parameters: dict[str, str]) -> HTTPResponse:
    """The running answer of ClickHouse's HTTP interface, which chooses formats better than a driver would."""
    parts = urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path or "/")
    target = bare._replace(query=urlencode({"database": "otel"} | parameters)).geturl()
    request = urllib.request.Request(target, query)  # noqa: S310 - the settings hold only http addresses
    if parts.username:
        request.add_header("X-ClickHouse-User", unquote(parts.username))
        request.add_header("X-ClickHouse-Key", unquote(parts.password or ""))
    address = f"{bare.scheme}://{bare.netloc}"
    try:
        return open_url(request, tls=context_of(url))
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace").strip()
        if "X-ClickHouse-Exception-Code" in error.headers or said.startswith("Code: "):
            raise TracegradError(f"ClickHouse: {said}") from error
        if error.code >= 500:  # by what is between us, as a balancer of load
            raise UnreachableError(f"no store answers at {address} (HTTP status {error.code}): ask again") from error
        raise _no_store(address) from error
    except (OSError, HTTPException) as error:
        why = no_answer(error)
        if why is NoAnswer.NO_HTTP:
            raise _no_store(address) from error
        if why is not None:
            raise UnreachableError(f"what answers at {address} {why.value}: {_ADVICE[why]}") from error
        reason = getattr(error, "reason", error)
        raise UnreachableError(
            f"no store at {address} ({reason}): start one with `tracegrad collector`, or set TRACEGRAD_CLICKHOUSE"
        ) from error


def _no_store(address: str) -> UnreachableError:
    return UnreachableError(f"what answers at {address} is no ClickHouse HTTP interface: check TRACEGRAD_CLICKHOUSE")
