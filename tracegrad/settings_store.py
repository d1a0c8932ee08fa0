"""Settings of `[collector]` that say where its rows live, what the tables are like and how long they keep rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from tracegrad.errors import SettingsError
from tracegrad.secret import Secret, one_secret
from tracegrad.store_address import StoreAddress, store_address

CHDB = "chdb"
MAX_DAYS = 3650
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
FOREVER = "forever"


def _kept(text: str) -> str:
    if text in ("", FOREVER):
        return text
    number, unit = text[:-1], text[-1]
    if unit not in _HOURS or not number.isascii() or not number.isdecimal():
        raise ValueError(f"is {text!r}: write hours, days or weeks, as 12h, 30d or 4w, or {FOREVER}")
    if not 1 <= int(number) * _HOURS[unit] <= MAX_DAYS * 24:
        raise ValueError(f"is {text!r}: rows are kept from 1h to {MAX_DAYS}d, or {FOREVER}")
    return f"{int(number)}{unit}"


Kept = Annotated[str, AfterValidator(_kept)]


class StoreSettings(BaseModel):
    """`store`: `chdb`, the embedded engine, or a server's address. `ttl_*` are of one kind; empty, they are `ttl`."""

    model_config = ConfigDict(frozen=True)

    store: str = Field(default=CHDB, repr=False)
    """`clickhouse://user@host:8123/otel?secure=1&...`; a password is better kept in one of the next three."""
    store_password: SecretStr | None = None
    store_password_env: str | None = None
    store_password_file: Path | None = None
    create_schema: bool = True
    """False: somebody else applies what `tracegrad collector --print-schema` prints; no table is touched here."""
    cluster: str = Field(default="", pattern=r"^[A-Za-z0-9_.{}-]*$")
    """Of the server's clusters, the one whose replicas all have the tables."""
    ttl: Kept = ""
    ttl_traces: Kept = ""
    ttl_logs: Kept = ""
    ttl_metrics: Kept = ""

    @field_validator("store")
    @classmethod
    def _is_a_store(cls, value: str) -> str:
        if value != CHDB:
            store_address(value)
        return value

    @model_validator(mode="after")
    def _one_password(self) -> "StoreSettings":
        secret, server = self._password, self.server
        if secret is not None and server is not None:
            if server.password:
                raise ValueError("store holds a password, and so does store_password: keep it in one place")
            if not server.user:
                raise ValueError("store_password needs a user in store: write clickhouse://user@host:8123/otel")
        return self

    @property
    def server(self) -> StoreAddress | None:
        """The server; None with the embedded engine."""
        return None if self.store == CHDB else store_address(self.store)

    @property
    def kept(self) -> Mapping[str, str]:
        """How long each kind of telemetry is kept; kinds that are kept for ever are not in it."""
        kinds = {"traces": self.ttl_traces, "logs": self.ttl_logs, "metrics": self.ttl_metrics}
        chosen = {kind: own or self.ttl for kind, own in kinds.items()}
        return {kind: text for kind, text in chosen.items() if text not in ("", FOREVER)}

    @property
    def _password(self) -> Secret | None:
        return one_secret(
            "[collector] store_password", self.store_password, self.store_password_env, self.store_password_file
        )

    def read_store_password(self) -> str:
        """The server's password; empty where there is none. Raises SettingsError where it cannot be read."""
        if self._password is not None:
            return self._password.read()
        return self.server.password if self.server is not None else ""

    def readers_url(self) -> str | None:
        """Where people and programs ask the server, with the password if this process can read it."""
        if self.server is None:
            return None
        try:
            password = self.read_store_password()
        except SettingsError:  # of use to the collector alone: others may have a TRACEGRAD_CLICKHOUSE of their own
            password = ""
        return self.server.http_url(password)
