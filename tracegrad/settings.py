"""Every setting, in one place: defaults, then a TOML file, then `TRACEGRAD_*` environment variables.

`TRACEGRAD_CLICKHOUSE` sets a top-level value, `TRACEGRAD_SIDECAR_PORT` the `port` of `[sidecar]`. Ports bind
to loopback unless a setting says otherwise. Addresses that are not given follow from hosts and ports, so that changing
a port in one place is enough. What a training job does is not here but in its own `train.toml`.
"""

import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import SecretStr, ValidationError, ValidationInfo, field_validator, model_validator

from tracegrad.errors import SettingsError
from tracegrad.otlp_access import OtlpAccess
from tracegrad.secret import one_secret
from tracegrad.settings_errors import explained, unknown_variable
from tracegrad.settings_sections import (
    DATA,
    CallMatch,
    CollectorSettings,
    Fsync,
    ModelRoute,
    Pins,
    Section,
    SidecarSettings,
    TenantSettings,
    VllmSettings,
    require_http,
)
from tracegrad.store_tls import with_files
from tracegrad.store_writer import writing_url

__all__ = [
    "DATA",
    "DEFAULT_FILE",
    "DEFAULT_POLICY",
    "CallMatch",
    "CollectorSettings",
    "Fsync",
    "ModelRoute",
    "Pins",
    "Settings",
    "SidecarSettings",
    "TenantSettings",
    "VllmSettings",
    "load",
]

DEFAULT_FILE = Path("tracegrad.toml")
DEFAULT_POLICY = "policy"

_ADDRESSES = {
    "clickhouse": ("collector", "host", "clickhouse_port"),
    "otlp": ("collector", "host", "otlp_http_port"),
    "sidecar_url": ("sidecar", "host", "port"),
    "sidecar_admin_url": ("sidecar", "admin_host", "admin_port"),
}
"""Where each address comes from when it is not given: a section's host, and a port of it."""
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - what is bound there answers here

_OF_A_CLUSTER = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?")
"""What Kubernetes tells containers of a Service that is named as a section is, such as `tracegrad-collector`."""


class Settings(Section):
    """Everything the processes need to find each other. Without `[[model]]`, all models are the engine's policy.

    `otlp_*`: what `otlp` asks of senders. Without an `otlp_token` they bear that of `[collector]`.
    """

    clickhouse: str = ""
    otlp: str = ""
    otlp_token: SecretStr | None = None
    otlp_token_env: str | None = None
    otlp_token_file: Path | None = None
    otlp_ca: Path | None = None
    otlp_cert: Path | None = None
    otlp_key: Path | None = None
    sidecar_url: str = ""
    sidecar_admin_url: str = ""
    collector: CollectorSettings = CollectorSettings()
    sidecar: SidecarSettings = SidecarSettings()
    vllm: VllmSettings = VllmSettings()
    model: tuple[ModelRoute, ...] = ()
    tenant: tuple[TenantSettings, ...] = ()

    @field_validator(*_ADDRESSES)
    @classmethod
    def _is_http(cls, value: str, info: ValidationInfo) -> str:
        if value:
            require_http(value, password=info.field_name == "clickhouse")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _complete(self) -> "Settings":
        if not self.clickhouse and (url := self.collector.readers_url()) is not None:
            self.__dict__["clickhouse"] = url
        for name, (section, host_name, port) in _ADDRESSES.items():
            if not getattr(self, name):
                chosen = getattr(self, section)
                given = getattr(chosen, host_name)
                host = _ANY_HOST.get(given, given)
                tls = section == "collector" and self.collector.tls_cert is not None
                url = f"http{'s' if tls else ''}://{host}:{getattr(chosen, port)}"
                if tls and name == "clickhouse":
                    url = with_files(url, self.otlp_ca, self.otlp_cert, self.otlp_key)
                # Not marked as set: a later change of the port is followed.
                self.__dict__[name] = url
        return self

    @model_validator(mode="after")
    def _one_token_and_whole_certificate(self) -> "Settings":
        _ = self.otlp_access
        if (self.otlp_cert is None) != (self.otlp_key is None):
            raise ValueError("otlp_cert and otlp_key belong together: give both, or none")
        return self

    @property
    def otlp_access(self) -> OtlpAccess:
        """What our senders show the collector."""
        given = one_secret("otlp_token", self.otlp_token, self.otlp_token_env, self.otlp_token_file)
        return OtlpAccess(given or self.collector.secret, self.otlp_ca, self.otlp_cert, self.otlp_key)

    @property
    def clickhouse_to_write(self) -> str:
        """`clickhouse` to write to: with the writer's name and password, where it names nobody and they are known."""
        return self.clickhouse if self.collector.server is not None else writing_url(self.clickhouse, self.collector)

    @property
    def routes(self) -> tuple[ModelRoute, ...]:
        """The configured routes, or one that takes every model to the engine of `[vllm]` as the policy `policy`."""
        engine = f"http://{self.vllm.host}:{self.vllm.port}"
        return self.model or (ModelRoute(name="*", upstream=engine, policy=DEFAULT_POLICY),)

    def to_json(self) -> bytes:
        """What was set, keys included, for `from_json` in another process: never for logs, arguments or files."""
        return orjson.dumps(self.model_dump(exclude_unset=True), default=_plain)

    @staticmethod
    def from_json(text: bytes | str) -> "Settings":
        """The settings of another process."""
        return _validate(orjson.loads(text), "another process")

    def with_address(self, name: str, url: str) -> "Settings":
        """A copy with another address, as given on a command line."""
        return _validate(self.model_dump(exclude_unset=True) | {name: url}, "the command line")

    def with_tenants(self, tenants: Sequence[Mapping[str, Any]]) -> "Settings":
        """A copy with other `[[tenant]]` entries, for a process that asks for no key at its admin port."""
        changed = self.model_dump(exclude_unset=True) | {"tenant": tenants}
        kept = {name: value for name, value in changed.get("sidecar", {}).items() if not name.startswith("admin_key")}
        return _validate(changed | {"sidecar": kept}, "another process")

    def with_values(self, section: str, **values: Any) -> "Settings":
        """A copy where `section` has `values`, as given on a command line; None leaves a value as it is."""
        given = {name: value for name, value in values.items() if value is not None}
        changed = self.model_dump(exclude_unset=True)
        changed[section] = changed.get(section, {}) | given
        return _validate(changed, f"command line ([{section}])")


def _plain(value: Any) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


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
    _refuse_unknown(values, environ)
    return _validate(values, f"{source} or TRACEGRAD_* variables" if source.exists() else "TRACEGRAD_* variables")


def _overlay_environment(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    for name, field in Settings.model_fields.items():
        default = field.default
        if isinstance(default, Section):
            for inner, inner_field in type(default).model_fields.items():
                text = environ.get(f"TRACEGRAD_{name}_{inner}".upper())
                if text is not None:
                    section = values.setdefault(name, {})
                    if not isinstance(section, dict):
                        raise SettingsError(f"bad setting {name}: it is a section, [{name}]")
                    section[inner] = _words(text) if isinstance(inner_field.default, tuple) else text
        elif not isinstance(default, tuple):
            text = environ.get(f"TRACEGRAD_{name}".upper())
            if text is not None:
                values[name] = text


def _refuse_unknown(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Raise SettingsError where a variable begins as a section's do and sets nothing: a token may be misspelt in it."""
    sections = {f"TRACEGRAD_{name}_".upper(): name for name, _ in _sections()}
    known = {f"TRACEGRAD_{name}".upper() for name in Settings.model_fields}
    known |= {f"TRACEGRAD_{name}_{inner}".upper() for name, section in _sections() for inner in section.model_fields}
    for name in sorted(environ.keys() - known):
        for prefix, section in sections.items():
            theirs = _OF_A_CLUSTER.fullmatch(name.removeprefix(prefix)) or name in _named_variables(values)
            if name.startswith(prefix) and not theirs:
                raise SettingsError(unknown_variable(Settings, name, section))


def _sections() -> Iterator[tuple[str, type[Section]]]:
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, Section):
            yield name, type(field.default)


def _named_variables(value: Any) -> Iterator[str]:
    """The variables that settings name as those that hold a secret."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name.endswith("_env") and isinstance(inner, str):
                yield inner
            yield from _named_variables(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _named_variables(inner)


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SettingsError(f"bad setting {text!r}: {error}") from error


def _validate(values: dict[str, Any], source: str) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(explained(error, Settings, values, source)) from error
