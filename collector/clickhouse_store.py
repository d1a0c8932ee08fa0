"""A ClickHouse server, or a cluster of one shard, as the store: over HTTP, by clickhouse-connect's raw bytes.

Invariants: an insert travels once; whether to send it again is for the caller, who first asks `is_running`. It is
acknowledged by the status of a response that was held until the rows were stored. No message holds a password.
The server may be away when this is made: connecting and the schema are tried again with every insert.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clickhouse_connect import get_client
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, ProgrammingError
from clickhouse_connect.driver.httputil import get_pool_manager
from urllib3.exceptions import HTTPError

from collector.clickhouse_faults import READONLY, explained, reason
from collector.compression import compress
from collector.server_features import require_cluster, require_formats
from collector.signals import SIGNALS, Signal
from collector.store import UNKNOWN_CODE, Answer, StoreError, error_code, is_retryable, quote
from tracegrad.errors import TracegradError
from tracegrad.loopback import is_loopback
from tracegrad.store_address import StoreAddress

log = logging.getLogger(__name__)

CONNECTIONS = 16
INSERT_SETTINGS = {
    # The status must tell how it ended, so nothing of the response may be sent before that.
    "wait_end_of_query": "1",
    "send_progress_in_http_headers": "0",
    "async_insert": "0",
}

# What no waiting mends: the collector says so and ends, when it hears it at its start.
_SET_UP_IS_WRONG = {
    46: "UNKNOWN_FUNCTION",
    47: "UNKNOWN_IDENTIFIER",
    48: "NOT_IMPLEMENTED",
    56: "UNKNOWN_STORAGE",
    62: "SYNTAX_ERROR",
    115: "UNKNOWN_SETTING",
    164: "READONLY",
    192: "UNKNOWN_USER",
    193: "WRONG_PASSWORD",
    452: "SETTING_CONSTRAINT_VIOLATION",
    497: "ACCESS_DENIED",
    516: "AUTHENTICATION_FAILED",
    701: "CLUSTER_DOESNT_EXIST",
}

_NO_DATA = 108  # NO_DATA_TO_INSERT: all else was in order
_SCHEMA_IS_GONE = {60: "UNKNOWN_TABLE", 81: "UNKNOWN_DATABASE"}

Prepare = Callable[["ClickHouseStore"], object]


class ClickHouseStore:
    """A Store. `prepare` makes its schema; it is called before the first insert, until it has succeeded once."""

    def __init__(self, address: StoreAddress, password: str, prepare: Prepare, cluster: str | None = None) -> None:
        self._address = address
        self._password = password
        self._prepare = prepare
        self._cluster = cluster
        self._lock = threading.RLock()
        self._client: Client | None = None
        self._prepared = False

    @property
    def name(self) -> str:
        """The address, without user, password and parameters."""
        return str(self._address)

    def begin(self) -> None:
        """Connect and make the schema now, if the server is there. Raises TracegradError where waiting is of no use."""
        try:
            self._ready()
        except StoreError as error:
            if error.code in _SET_UP_IS_WRONG or not error.retryable:
                raise
            log.warning("store not ready store=%s code=%d error=%.500s", self.name, error.code, str(error))

    def insert(self, signal: Signal, rows: Iterable[bytes], query_id: str) -> None:
        """Store `rows`. What became of one that got no answer is not known: see `is_running` and `delete`."""
        try:
            client = self._ready()
        except StoreError:
            raise
        except TracegradError as error:
            raise StoreError(UNKNOWN_CODE, str(error), retryable=True) from error
        if any(given := list(rows)):
            self._send(client, signal, given, query_id)

    def _send(self, client: Client, signal: Signal, rows: Iterable[bytes], query_id: str | None = None) -> None:
        chosen = signal.insertion
        # All of the statement before the data: a format's schema would make the URL longer than proxies let through.
        statement = f"INSERT INTO {chosen.table} {chosen.settings_clause()} FORMAT {chosen.input_format}\n"
        data = b"".join((statement.encode(), *rows))
        encoding = self._address.compression
        settings = INSERT_SETTINGS | ({"query_id": query_id} if query_id else {})
        try:
            with self._errors():
                client.raw_insert(
                    insert_block=_sent_once(compress(encoding, data) if encoding else data),
                    settings=settings | dict(self._address.settings),
                    compression=encoding,
                )
        except StoreError as error:
            if error.code in _SCHEMA_IS_GONE:
                self._prepared = False  # the next insert makes it again
            raise

    def query(self, sql: str, output_format: str = "TabSeparated", params: Mapping[str, str] | None = None) -> Answer:
        """Run one statement."""
        with self._lock:
            client = self._connected()
        return self._query(client, sql, output_format, params)

    def execute(self, sql: str) -> None:
        """Run one statement that has no result."""
        self.query(sql)

    def delete(self, table: str, where: str) -> int:
        """Take rows out, and say how many there were: on this replica, which first gets all that the others have."""
        if self._cluster:
            self.execute(f"SYSTEM SYNC REPLICA {table}")
        count = int(self.query(f"SELECT count() FROM {table} {where}").body)  # noqa: S608 - the caller's clause
        if count:
            # The other replicas follow in their own time; one that is down must not hold this one up.
            self.execute(f"DELETE FROM {table} {where} SETTINGS lightweight_deletes_sync = 1")  # noqa: S608
        return count

    def is_running(self, query_id: str) -> bool:
        """Whether an insert with this id is at work, here or on any replica; one that is, is told to stop first."""
        with self._lock:
            client = self._connected()
        if not self._is_there(client, query_id):
            return False
        everywhere = f" ON CLUSTER {quote(self._cluster)}" if self._cluster else ""
        try:
            self._query(client, f"KILL QUERY{everywhere} WHERE query_id = {quote(query_id)} SYNC")
        except StoreError as error:
            log.warning("cannot stop an insert store=%s query_id=%s error=%.500s", self.name, query_id, str(error))
        return self._is_there(client, query_id)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._client is not None:
                self._client.close_connections()
                self._client.close()
                self._client = None

    def _is_there(self, client: Client, query_id: str) -> bool:
        cluster = self._cluster
        processes = f"clusterAllReplicas({quote(cluster)}, system.processes)" if cluster else "system.processes"
        asked = f"SELECT count() FROM {processes} WHERE query_id = {{id:String}}"  # noqa: S608 - quoted
        return int(self._query(client, asked, params={"id": query_id}).body) > 0

    def _query(
        self, client: Client, sql: str, output_format: str = "TabSeparated", params: Mapping[str, str] | None = None
    ) -> Answer:
        chosen = output_format if output_format != "TabSeparated" else None  # what it answers in by itself
        with self._errors():
            return Answer(client.raw_query(sql, dict(params) if params else None, fmt=chosen, use_database=False))

    def _ready(self) -> Client:
        """The client of a server that has the schema. One thread at a time finds out."""
        with self._lock:
            client = self._connected()
            if not self._prepared:
                require_formats(self.name, client.server_version, client.server_settings)
                if self._cluster:
                    require_cluster(self, self._cluster)
                try:
                    self._prepare(self)
                    self._try_inserts(client)
                except StoreError as error:
                    if (wrong := explained(error, self._address, client.server_settings)) is None:
                        raise
                    raise wrong from error
                self._prepared = True
                log.info("store ready store=%s version=%s", self.name, client.server_version)
            return client

    def _try_inserts(self, client: Client) -> None:
        """Insert no rows, so that a user who may not, or a setting that is none, is told before rows are taken."""
        for signal in SIGNALS:
            try:
                self._send(client, signal, ())
            except StoreError as error:
                if error.code != _NO_DATA:
                    raise

    def _connected(self) -> Client:
        if self._client is None:
            with self._errors():
                self._client = self._connect()
        return self._client

    def _connect(self) -> Client:
        address = self._address
        # With a pool of its own it looks for no proxy.
        pool: dict[str, Any] = {"pool_mgr": _pool(address)} if is_loopback(address.host) else {"dedicated_pool": True}
        client = get_client(
            host=address.host,
            port=address.port,
            secure=address.secure,
            username=address.user or None,
            password=self._password,
            database=None,
            verify=address.verify,
            server_host_name=address.server_host_name,
            connect_timeout=address.connect_timeout,
            send_receive_timeout=address.send_receive_timeout,
            autogenerate_session_id=False,
            show_clickhouse_errors="scrub",
            ca_cert=address.ca_cert,
            client_cert=address.client_cert,
            client_cert_key=address.client_cert_key,
            **pool,
        )
        client.http_retries = 0  # this class's callers know better when
        return client

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the driver's errors into StoreError."""
        try:
            yield
        except (ClickHouseError, HTTPError, OSError) as error:
            text = " ".join(str(error).split())
            code = getattr(error, "code", None) or (error_code(text) if "Code: " in text else None)
            if code is None and isinstance(error, ProgrammingError):  # the driver knows what the user may not set
                raise StoreError(READONLY, f"{self.name}: {text}", retryable=True) from error
            if code is None:
                why = reason(error, connecting=self._client is None)
                raise StoreError(0, f"no answer from {self.name}: {why}", retryable=True) from error
            said = text[max(text.find("Code: "), 0) :]
            raise StoreError(code, f"{self.name}: {said}", retryable=is_retryable(code)) from error


def _pool(address: StoreAddress) -> Any:
    options: dict[str, Any] = {"verify": address.verify, "maxsize": CONNECTIONS}
    for name in ("ca_cert", "client_cert", "client_cert_key"):
        if (value := getattr(address, name)) is not None:
            options[name] = value
    if address.server_host_name:
        options |= {"server_hostname": address.server_host_name}
        if address.verify:
            options["assert_hostname"] = address.server_host_name
    return get_pool_manager(**options)


def _sent_once(data: bytes) -> Any:
    """`data` as something that the driver does not send again by itself when a connection breaks."""
    return memoryview(data)
