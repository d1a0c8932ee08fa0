"""One way to reach the store, for everyone who reads or writes rows: clickhouse-connect over HTTP, database `otel`."""

from urllib.parse import unquote, urlsplit

from clickhouse_connect import get_client
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from tracegrad.errors import SettingsError, UnreachableError

DATABASE = "otel"


def connect(url: str) -> Client:
    """A client for the store at `url`. Raises UnreachableError when nothing answers there."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(f"bad setting clickhouse: {url!r} is not an http:// address")
    try:
        return get_client(
            host=parts.hostname,
            port=parts.port or (8443 if parts.scheme == "https" else 8123),
            secure=parts.scheme == "https",
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password or ""),
            database=DATABASE,
            autogenerate_session_id=False,
        )
    except (ClickHouseError, OSError) as error:
        address = f"{parts.scheme}://{parts.hostname}:{parts.port or 8123}"
        raise UnreachableError(
            f"no store at {address}: start one with `tracegrad collector`, or set TRACEGRAD_CLICKHOUSE"
        ) from error
