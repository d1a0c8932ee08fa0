"""Every setting, in one place: defaults, then a TOML file, then `TRACEGRAD_*` environment variables.

`TRACEGRAD_CLICKHOUSE` sets a top-level value, `TRACEGRAD_SIDECAR_PORT` the `port` of `[sidecar]`. Ports bind
to loopback unless a setting says otherwise. Addresses that are not given follow from hosts and ports, so that changing
a port in one place is enough. What a training job does is not here but in its own `train.toml`.
"""

import os
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tracegrad.errors import SettingsError

DEFAULT_FILE = Path("tracegrad.toml")
DATA = Path(".tracegrad")
DEFAULT_POLICY = "policy"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _require_http(url: str, *, password: bool = False) -> None:
    """Raise ValueError unless `url` is an http(s) address, without a user or password unless these are for us."""
    parts = urlsplit(url)
    _ = parts.port  # raises ValueError, whose message says what is wrong
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("not an http:// address")
    if "@" in parts.netloc and not password:
        raise ValueError("an address here may not hold a password, since addresses are shown: use api_key of [[model]]")


class CollectorSettings(_Section):
    """`[collector]`: the process that owns the store. `data` is the chDB directory."""

    host: str = "127.0.0.1"
    data: Path = DATA / "store"
    otlp_http_port: int = Field(default=4318, ge=0, le=65535)
    clickhouse_port: int = Field(default=8123, ge=0, le=65535)


class SidecarSettings(_Section):
    """`[sidecar]`: the proxy. Published weights are accepted only from under `weights`; `data` is its own directory.

    `stored_responses` and `stored_responses_bytes` bound what each tenant keeps for `previous_response_id`.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8088, ge=0, le=65535)
    admin_port: int = Field(default=8089, ge=0, le=65535)
    data: Path = DATA / "sidecar"
    weights: Path = DATA / "weights"
    stored_responses: int = Field(default=20_000, ge=0)
    stored_responses_bytes: int = Field(default=256 << 20, ge=0)


class VllmSettings(_Section):
    """`[vllm]`: the engine that `tracegrad up --model` starts. `args` go to vLLM as they are."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    args: tuple[str, ...] = ()


class ModelRoute(_Section):
    """`[[model]]`: where requests for one model name go. `name = "*"` matches what no other entry does.

    A route with a `policy` is captured to the token and can train; one without passes through and never does.
    """

    name: str
    upstream: str | tuple[str, ...] = "http://127.0.0.1:8000"
    policy: str | None = None
    api_key: SecretStr | None = None

    @field_validator("upstream")
    @classmethod
    def _are_http(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for url in (value,) if isinstance(value, str) else value:
            _require_http(url)
        return value

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The replicas' base URLs, without a trailing slash or `/v1`."""
        urls = (self.upstream,) if isinstance(self.upstream, str) else self.upstream
        return tuple(url.rstrip("/").removesuffix("/v1") for url in urls)


_ADDRESSES = {
    "clickhouse": ("collector", "clickhouse_port"),
    "otlp": ("collector", "otlp_http_port"),
    "sidecar_url": ("sidecar", "port"),
    "sidecar_admin_url": ("sidecar", "admin_port"),
}
"""Where each address comes from when it is not given: a section's host, and a port of it."""
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - what is bound there answers here


class Settings(_Section):
    """Everything the processes need to find each other. Without `[[model]]`, all models are the engine's policy."""

    clickhouse: str = ""
    otlp: str = ""
    sidecar_url: str = ""
    sidecar_admin_url: str = ""
    collector: CollectorSettings = CollectorSettings()
    sidecar: SidecarSettings = SidecarSettings()
    vllm: VllmSettings = VllmSettings()
    model: tuple[ModelRoute, ...] = ()

    @field_validator(*_ADDRESSES)
    @classmethod
    def _is_http(cls, value: str, info: ValidationInfo) -> str:
        if value:
            _require_http(value, password=info.field_name == "clickhouse")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _complete(self) -> "Settings":
        for name, (section, port) in _ADDRESSES.items():
            if not getattr(self, name):
                chosen = getattr(self, section)
                host = _ANY_HOST.get(chosen.host, chosen.host)
                # Not marked as set: a later change of the port is followed.
                self.__dict__[name] = f"http://{host}:{getattr(chosen, port)}"
        return self

    @property
    def routes(self) -> tuple[ModelRoute, ...]:
        """The configured routes, or one that takes every model to the engine of `[vllm]` as the policy `policy`."""
        engine = f"http://{self.vllm.host}:{self.vllm.port}"
        return self.model or (ModelRoute(name="*", upstream=engine, policy=DEFAULT_POLICY),)

    def with_address(self, name: str, url: str) -> "Settings":
        """A copy with another address, as given on a command line."""
        return _validate(self.model_dump(exclude_unset=True) | {name: url}, "the command line")

    def with_values(self, section: str, **values: Any) -> "Settings":
        """A copy where `section` has `values`, as given on a command line; None leaves a value as it is."""
        given = {name: value for name, value in values.items() if value is not None}
        changed = self.model_dump(exclude_unset=True)
        changed[section] = changed.get(section, {}) | given
        return _validate(changed, f"command line ([{section}])")


def load(file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from `file` (or `tracegrad.toml` where it exists) and `environ`. Raises SettingsError."""
    values: dict[str, Any] = {}
    source = file or DEFAULT_FILE
    if file is not None and not file.exists():
        raise SettingsError(f"no configuration file at {file}: check --config")
    if source.exists():
        try:
            values = tomllib.loads(source.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{source} is not TOML: {error}") from error
        except OSError as error:
            raise SettingsError(f"{source} cannot be read: {error.strerror}") from error
    _overlay_environment(values, environ)
    return _validate(values, f"{source} or TRACEGRAD_* variables" if source.exists() else "TRACEGRAD_* variables")


def _overlay_environment(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    for name, field in Settings.model_fields.items():
        default = field.default
        if isinstance(default, _Section):
            for inner, inner_field in type(default).model_fields.items():
                text = environ.get(f"TRACEGRAD_{name}_{inner}".upper())
                if text is not None:
                    section = values.setdefault(name, {})
                    if not isinstance(section, dict):
                        raise SettingsError(f"bad setting {name}: it is a section, [{name}]")
                    section[inner] = _words(text) if isinstance(inner_field.default, tuple) else text
        elif isinstance(default, str):
            text = environ.get(f"TRACEGRAD_{name}".upper())
            if text is not None:
                values[name] = text


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SettingsError(f"bad setting {text!r}: {error}") from error


def _validate(values: dict[str, Any], source: str) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"bad setting {where} in {source}: {first['msg']}") from error
