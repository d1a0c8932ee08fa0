"""The address of a ClickHouse server as a store: `clickhouse://user:password@host:8123/otel?secure=1&...`.

Parameters are how to connect (`CONNECTING`) or ClickHouse's own settings for inserts, such as `insert_quorum=2`.
Invariant: nothing that is shown of it, by `str`, `repr` or in an error, holds the password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tracegrad.store_tls import with_files

SCHEMES = {"clickhouse": False, "clickhouses": True}
DATABASE = "otel"
PORT, SECURE_PORT = 8123, 8443
CONNECTING = (
    "secure",
    "verify",
    "ca_cert",
    "client_cert",
    "client_cert_key",
    "server_host_name",
    "connect_timeout",
    "send_receive_timeout",
    "compression",
)
COMPRESSIONS = ("zstd", "lz4", "gzip", "none")
_YES, _NO = ("1", "true", "yes"), ("0", "false", "no")
_SETTING = re.compile(r"[a-z][a-z0-9_]*")
# Inserts are batches of raw bytes, acknowledged when they are stored. These would change that.
_OURS = re.compile(
    r"async_insert.*|wait_for_async_insert.*|insert_deduplication_token|format_schema.*|query_id|query|user|password"
)


@dataclass(frozen=True)
class StoreAddress:
    """A server. `password` is empty where it is kept elsewhere; timeouts are in seconds."""

    host: str
    port: int
    secure: bool
    user: str = ""
    password: str = field(default="", repr=False)
    verify: bool = True
    ca_cert: str | None = None
    client_cert: str | None = None
    client_cert_key: str | None = None
    server_host_name: str | None = None
    connect_timeout: int = 10
    send_receive_timeout: int = 120
    compression: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"clickhouse{'s' if self.secure else ''}://{self._host}:{self.port}"

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def http_url(self, password: str) -> str:
        """The same server for those who read and write over HTTP, with the user's name and password where there are."""
        login = f"{quote(self.user, safe='')}{':' if password else ''}{quote(password, safe='')}@" if self.user else ""
        url = f"http{'s' if self.secure else ''}://{login}{self._host}:{self.port}"
        return with_files(url, self.ca_cert, self.client_cert, self.client_cert_key)


def store_address(url: str) -> StoreAddress:
    """Take it apart. Raises ValueError, whose message says what is wrong and holds nothing of the password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError("is not an address: write clickhouse://user@host:8123/otel") from error
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:  # part of a password, so not to be shown
        raise ValueError("is cut short: in a password, write / as %2F, ? as %3F, # as %23 and @ as %40")
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError("is neither chdb nor an address: write clickhouse://user@host:8123/otel")
    if (database := parts.path.strip("/")) not in ("", DATABASE):
        raise ValueError(f"names database {database!r}, but the schema is made of tables of the database {DATABASE}")
    given: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in given:
            raise ValueError(f"names {name} twice")
        given[name] = value
    secure = _bool(given, "secure", default=SCHEMES[parts.scheme])
    settings = {name: value for name, value in given.items() if name not in CONNECTING}
    for name in settings:
        if not _SETTING.fullmatch(name):
            raise ValueError(f"holds a parameter {name!r}, which is not the name of a setting")
        if _OURS.fullmatch(name):
            raise ValueError(f"sets {name}, which is the collector's own to set: leave it out")
    return StoreAddress(
        host=parts.hostname,
        port=port or (SECURE_PORT if secure else PORT),
        secure=secure,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        verify=_bool(given, "verify", default=True),
        settings=settings,
        **_texts(given),
        **_seconds(given),
    )


def _texts(given: Mapping[str, str]) -> dict[str, Any]:
    names = ("ca_cert", "client_cert", "client_cert_key", "server_host_name", "compression")
    texts = {name: given[name] for name in names if name in given}
    if (chosen := texts.get("compression")) is not None and chosen not in COMPRESSIONS:
        raise ValueError(f"names compression {chosen!r}: there are {', '.join(COMPRESSIONS)}")
    if chosen == "none":
        del texts["compression"]
    if empty := [name for name, text in texts.items() if not text]:
        raise ValueError(f"names {empty[0]} without a value")
    return texts


def _seconds(given: Mapping[str, str]) -> dict[str, Any]:
    seconds = {}
    for name in ("connect_timeout", "send_receive_timeout"):
        if (text := given.get(name)) is not None:
            if not text.isdecimal() or not 0 < int(text) <= 3600:
                raise ValueError(f"has {name}={text}: give whole seconds, from 1 to 3600")
            seconds[name] = int(text)
    return seconds


def _bool(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in _YES + _NO:
        raise ValueError(f"has {name}={text}: give 1 or 0")
    return text.lower() in _YES
