"""One way to reach the store, for everyone who reads or writes rows: clickhouse-connect over HTTP, database `otel`."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit, urlunsplit

from clickhouse_connect import get_client
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from clickhouse_connect.driver.httputil import default_pool_manager, get_pool_manager

from tracegrad.errors import TooLargeError, TracegradError, UnreachableError
from tracegrad.loopback import is_loopback
from tracegrad.store_tls import context_of, files_of

DATABASE = "otel"
MEMORY_LIMIT_EXCEEDED = 241


def shown(url: str) -> str:
    """The address without user, password and files, for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def connect(url: str) -> Client:
    """A client for the store at `url`. Raises UnreachableError when nothing answers there, SettingsError for files."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    context_of(url)  # says better than the driver what is wrong with a file
    files = files_of(url)
    # With a pool of its own it looks for no proxy.
    direct = (get_pool_manager(**files) if files else default_pool_manager()) if is_loopback(parts.hostname) else None
    with errors_in_one_line(url):
        return get_client(
            host=parts.hostname,
            port=parts.port or (8443 if secure else 8123),
            secure=secure,
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password or ""),
            database=DATABASE,
            autogenerate_session_id=False,
            pool_mgr=direct,
            tls_mode="strict" if files else None,  # a certificate of ours is no user's
            **files,
        )


@contextmanager
def errors_in_one_line(url: str) -> Iterator[None]:
    """Turn the driver's errors into ours: UnreachableError when the store is gone, TracegradError when it refuses, a
    TooLargeError where that is for want of memory.
    """
    try:
        yield
    except (OperationalError, OSError) as error:
        raise UnreachableError(
            f"no store at {shown(url)}: start one with `tracegrad collector`, or set TRACEGRAD_CLICKHOUSE"
        ) from error
    except ClickHouseError as error:
        kind = TooLargeError if getattr(error, "code", None) == MEMORY_LIMIT_EXCEEDED else TracegradError
        raise kind(f"the store refused a query: {str(error).splitlines()[0]}") from error
