"""Every setting, in one place: defaults, then a TOML file, then `TRACEGRAD_*` environment variables.

`TRACEGRAD_CLICKHOUSE` sets a top-level value, `TRACEGRAD_SIDECAR_PORT` the `port` of `[sidecar]`. Ports bind
to loopback unless a setting says otherwise. What a training job does is not here but in its own `train.toml`.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from tracegrad.errors import SettingsError

DEFAULT_FILE = Path("tracegrad.toml")
DATA = Path(".tracegrad")
DEFAULT_POLICY = "policy"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CollectorSettings(_Section):
    """`[collector]`: the process that owns the store. `data` is the chDB directory."""

    host: str = "127.0.0.1"
    data: Path = DATA / "store"
    otlp_http_port: int = Field(default=4318, ge=0, le=65535)
    clickhouse_port: int = Field(default=8123, ge=0, le=65535)


class SidecarSettings(_Section):
    """`[sidecar]`: the proxy. Published weights are accepted only from under `weights`."""

    host: str = "127.0.0.1"
    port: int = Field(default=8088, ge=0, le=65535)
    admin_port: int = Field(default=8089, ge=0, le=65535)
    data: Path = DATA / "sidecar"
    weights: Path = DATA / "weights"


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

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The replicas' base URLs, without a trailing slash or `/v1`."""
        urls = (self.upstream,) if isinstance(self.upstream, str) else self.upstream
        return tuple(url.rstrip("/").removesuffix("/v1") for url in urls)


class Settings(_Section):
    """Everything the processes need to find each other. Without `[[model]]`, all models are the engine's policy."""

    clickhouse: str = "http://127.0.0.1:8123"
    otlp: str = "http://127.0.0.1:4318"
    sidecar_url: str = "http://127.0.0.1:8088"
    sidecar_admin_url: str = "http://127.0.0.1:8089"
    collector: CollectorSettings = CollectorSettings()
    sidecar: SidecarSettings = SidecarSettings()
    vllm: VllmSettings = VllmSettings()
    model: tuple[ModelRoute, ...] = ()

    @property
    def routes(self) -> tuple[ModelRoute, ...]:
        """The configured routes, or one that takes every model to the engine of `[vllm]` as the policy `policy`."""
        engine = f"http://{self.vllm.host}:{self.vllm.port}"
        return self.model or (ModelRoute(name="*", upstream=engine, policy=DEFAULT_POLICY),)

    def with_values(self, section: str, **values: Any) -> "Settings":
        """A copy where `section` has `values`, as given on a command line; None leaves a value as it is."""
        given = {name: value for name, value in values.items() if value is not None}
        changed = self.model_dump()
        changed[section].update(given)
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
    _overlay_environment(values, environ)
    return _validate(values, str(source) if source.exists() else "the environment")


def _overlay_environment(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    for name, field in Settings.model_fields.items():
        default = field.default
        if isinstance(default, _Section):
            for inner in type(default).model_fields:
                text = environ.get(f"TRACEGRAD_{name}_{inner}".upper())
                if text is not None:
                    values.setdefault(name, {})[inner] = text
        elif isinstance(default, str):
            text = environ.get(f"TRACEGRAD_{name}".upper())
            if text is not None:
                values[name] = text


def _validate(values: dict[str, Any], source: str) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"bad setting {where} in {source}: {first['msg']}") from error
