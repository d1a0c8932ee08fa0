"""The sections of the configuration, each with its defaults and what its values may be."""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from tracegrad.secret import Secret, one_secret
from tracegrad.settings_store import StoreSettings
from tracegrad.settings_writer import WriterSettings

DATA = Path(".tracegrad")


class Section(BaseModel):
    """What all have in common: they do not change, and hold nothing that is not here."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def require_http(url: str, *, password: bool = False) -> None:
    """Raise ValueError unless `url` is an http(s) address, without a user or password unless these are for us."""
    parts = urlsplit(url)
    _ = parts.port  # raises ValueError, whose message says what is wrong
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("not an http:// address")
    if "@" in parts.netloc and not password:
        raise ValueError("an address here may not hold a password, since addresses are shown: use api_key of [[model]]")


def _not_empty(value: object) -> object:
    if value == "":
        raise ValueError("is empty, which would be the directory that a process happens to start in: name one")
    return value


def _is_host(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("is empty: name an address, as 127.0.0.1 for this machine alone or 0.0.0.0 for all")
    return value


Host = Annotated[str, BeforeValidator(_is_host)]
Fsync = Literal["always", "interval", "off"]
Directory = Annotated[Path, BeforeValidator(_not_empty)]


class CollectorSettings(StoreSettings, WriterSettings, Section):
    """`[collector]`: the process that owns the store. `data` is the chDB directory.

    `tls_*` are of all its ports. With `tls_client_ca`, who connects needs a certificate that it vouches for.
    """

    host: Host = "127.0.0.1"
    data: Directory = DATA / "store"
    otlp_http_port: int = Field(default=4318, ge=0, le=65535)
    otlp_grpc_port: int = Field(default=4317, ge=0, le=65535)
    clickhouse_port: int = Field(default=8123, ge=0, le=65535)
    max_body_bytes: int = Field(default=64 << 20, gt=0, lt=1 << 31)
    """Of one export, as plain OTLP; larger ones are refused."""
    spool_bytes: int = Field(default=4 << 30, ge=1 << 20)
    """Of acknowledged exports of each signal that may wait on disk for the store; beyond it senders get 429."""
    spool_fsync: Fsync = "interval"
    """What the spool survives: `off` a killed process, `interval` also a loss of power but for about a second of
    acknowledged exports, `always` (each acknowledgement waits for the disk) all of them."""
    token: SecretStr | None = None
    """What senders must bear as `Authorization: Bearer`; without one, whoever reaches the OTLP ports may send."""
    token_env: str | None = None
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    @property
    def spool_directory(self) -> Path:
        """Where exports wait for the store, embedded or not."""
        return self.data / "spool"

    @property
    def secret(self) -> Secret | None:
        """The token; None where none is asked for."""
        return one_secret("[collector] token", self.token, self.token_env, self.token_file)

    @model_validator(mode="after")
    def _one_token_and_whole_tls(self) -> "CollectorSettings":
        _ = self.secret
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: give both, or none")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key: without TLS nobody shows a certificate")
        return self


class SidecarSettings(Section):
    """`[sidecar]`: the proxy. Published weights are accepted only from under `weights`; `data` is its own directory.

    From `max_body_bytes` on, values may change while it runs (SIGHUP, or `POST /reload` of the admin port); those
    before need a restart. `stored_responses` and `stored_responses_bytes` bound what each tenant keeps for
    `previous_response_id`.
    """

    host: Host = "127.0.0.1"
    port: int = Field(default=8088, ge=0, le=65535)
    admin_host: Host = "127.0.0.1"
    admin_port: int = Field(default=8089, ge=0, le=65535)
    data: Directory = DATA / "sidecar"
    weights: Directory = DATA / "weights"
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that share the agents' port."""
    reuse_port: bool = False
    """Let another sidecar of the same user listen on the same ports, so that it can take over while this one drains."""
    spool_bytes: int = Field(default=1 << 30, ge=1 << 20)
    """Of spans that each worker keeps on disk, under `data`, until the collector has them; more are dropped."""
    spool_fsync: Literal["off", "interval"] = "off"
    """What the spool survives: `off` a killed process, `interval` also a loss of power but for about a second."""
    stored_responses: int = Field(default=20_000, ge=0)
    stored_responses_bytes: int = Field(default=256 << 20, ge=0)
    shutdown_s: float = Field(default=20.0, ge=0)
    """How long requests in flight may take to end after SIGTERM."""

    max_body_bytes: int = Field(default=64 << 20, gt=0)
    """Larger model calls get 413."""
    max_upload_bytes: int = Field(default=0, ge=0)
    """The same for requests that are passed on as they come, such as files, and take no memory. 0: no limit."""
    max_concurrency: int = Field(default=0, ge=0)
    """Requests served at a time; each of several workers admits its share, at least one. 0: no limit."""
    max_waiting: int = Field(default=256, ge=0)
    """Requests above `max_concurrency` that may wait for a place; the rest get 429 at once."""
    max_wait_s: float = Field(default=10.0, ge=0)
    """How long they wait before they get 429."""
    timeout_s: float = Field(default=0.0, ge=0)
    """How long a request may take until its last byte; then 504, or an error event in a stream. 0: no limit."""
    access_log: str = "off"
    """`off`, `-` (standard output) or a file that gets one JSON object per request."""
    admin_key: SecretStr | None = None
    """What the admin port asks for as `Authorization: Bearer` (or `x-api-key`); without one, whoever reaches it may."""
    admin_key_env: str | None = None
    admin_key_file: Path | None = None

    @property
    def admin_secret(self) -> Secret | None:
        """The admin port's key; None where none is asked for."""
        return one_secret("[sidecar] admin_key", self.admin_key, self.admin_key_env, self.admin_key_file)

    @model_validator(mode="after")
    def _one_key(self) -> "SidecarSettings":
        _ = self.admin_secret
        return self

    @model_validator(mode="after")
    def _two_ports(self) -> "SidecarSettings":
        shared = self.host == self.admin_host or not {self.host, self.admin_host}.isdisjoint({"0.0.0.0", "::"})  # noqa: S104
        if self.port == self.admin_port != 0 and shared:
            raise ValueError(f"port and admin_port are both {self.port}: agents and operators need a port each")
        return self


class TenantSettings(Section):
    """`[[tenant]]`: who may call the agents' port, by a key as `Authorization: Bearer`, `x-api-key` or `api-key`.

    Exactly one of `key`, `key_env` (a variable's name), `key_file` and `key_sha256` (hexadecimal). Two entries may
    share a name, so that a key can be changed without a gap.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    key: SecretStr | None = None
    key_env: str | None = None
    key_file: Path | None = None
    key_sha256: str | None = Field(default=None, pattern="^[0-9a-fA-F]{64}$")
    max_concurrency: int = Field(default=0, ge=0)
    """Of this tenant's requests at a time, as `[sidecar] max_concurrency` of all."""

    @property
    def secret(self) -> Secret | None:
        """The key; None where only its digest is known."""
        return one_secret(f"key of [[tenant]] {self.name!r}", self.key, self.key_env, self.key_file)

    @model_validator(mode="after")
    def _one_key(self) -> "TenantSettings":
        if (self.secret is None) == (self.key_sha256 is None):
            raise ValueError(f"[[tenant]] {self.name!r} needs exactly one of key, key_env, key_file and key_sha256")
        return self


class VllmSettings(Section):
    """`[vllm]`: the engine that `tracegrad up --model` starts. `args` go to vLLM as they are."""

    host: Host = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    args: tuple[str, ...] = ()


class CallMatch(Section):
    """`match` of `[[model]]`: which calls an entry takes; all that is given must hold.

    Each value is a regular expression (Rust's syntax, without look-around). Those of `rollout` (the id that path,
    header or baggage name; `.*` takes every named rollout), `agent` (the `x-tracegrad-agent` header) and `header` (the
    values of request headers) must match the whole value. `system` may match anywhere in the first 16,384 characters of
    the system prompt. What a call does not have never matches, but one without a system prompt has an empty one.
    """

    rollout: str | None = None
    agent: str | None = None
    system: str | None = None
    header: dict[str, str] = {}


class Pins(Section):
    """`pins` of `[[model]]`, for entries with a `policy`: sampling settings that hold whatever the agent asks for.

    They apply to training traffic, that is to calls of rollouts that are named (by path, header or baggage) and are not
    of the split `eval`; with `pin_calls = "all"` to all calls of the entry. Those that set a number are sent to the
    engine and recorded as applied. `logprobs_mode` is a setting of vLLM's that no request can change: here it says
    what the engines' must be (`--logprobs-mode`), for all calls of the policy. An engine with another, or one that does
    not tell, is not ready, serves only as a last resort, and what it answers does not train (`no_logprobs`).
    """

    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] | None = None

    @property
    def sampling(self) -> dict[str, float | int]:
        """What requests are sent with."""
        return self.model_dump(exclude_none=True, exclude={"logprobs_mode"})


class ModelRoute(Section):
    """`[[model]]`: where calls for a model name go. In it, `*` stands for any characters: `gpt-4*`, or `*` alone.

    Entries are tried in this order: exact names, then names with `*` in them, then `*`; among these, those with a
    `match` before those without; then as in the file. The first whose name fits and whose `match` holds takes the call.
    A route with a `policy` is captured to the token and can train; one without passes through and never does.
    """

    name: str = Field(min_length=1)
    upstream: str | tuple[str, ...] = "http://127.0.0.1:8000"
    policy: str | None = Field(default=None, min_length=1)
    api_key: SecretStr | None = None
    served: str | None = Field(default=None, min_length=1)
    """The upstream's own name of the model: `model` of each request is set to it, and the answers say it."""
    match: CallMatch | None = None
    continuation: Literal["auto", "tokens", "off"] = "auto"
    """Of a policy: whether a call that extends an earlier one of its rollout is prompted with that one's exact tokens.

    `auto`: where the chat template is append-only, so that nothing but the tokenisation of history can differ.
    `tokens`: also where the template would take something out of history (earlier thinking), which then stays in.
    """

    pins: Pins | None = None
    pin_calls: Literal["rollouts", "all"] = "rollouts"

    @field_validator("upstream")
    @classmethod
    def _are_http(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        urls = (value,) if isinstance(value, str) else value
        for url in urls:
            require_http(url)
        bases = [_base(url) for url in urls]
        if twice := [url for url in bases if bases.count(url) > 1]:
            raise ValueError(f"{twice[0]} is there twice: name each replica once")
        return value

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The replicas' base URLs, without a trailing slash or `/v1`."""
        urls = (self.upstream,) if isinstance(self.upstream, str) else self.upstream
        return tuple(map(_base, urls))


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")
