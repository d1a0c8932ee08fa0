"""Who may do what over ClickHouse HTTP: `default` reads and needs no password, `writer` also writes and needs one.

Invariant: the password never reaches the engine, a log or an error; it is compared in constant time.
"""

import base64
import binascii
import hmac
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.engine import EngineError
from tracegrad.errors import TracegradError
from tracegrad.secret import Secret
from tracegrad.store_writer import PASSWORD_FILE, WRITER, kept_password

log = logging.getLogger(__name__)

AUTHENTICATION_FAILED = 516
READER = "default"
READONLY = 164
HINT = (
    f"the user {READER} only reads; name the user {WRITER}, whose password is in {PASSWORD_FILE} beside the store, "
    "to write"
)


@dataclass(frozen=True)
class User:
    """Who asks. What `writes` is False does is bounded by the engine's readonly mode."""

    name: str
    writes: bool


@dataclass(frozen=True)
class Credentials:
    """What a request says of its user. No password is the empty one."""

    name: str
    password: str


class Users:
    """The two users."""

    def __init__(self, writer_password: str) -> None:
        self._passwords = {READER: b"", WRITER: writer_password.encode()}

    def authenticate(self, headers: Mapping[str, str], parameters: Mapping[str, str]) -> User:
        """The user of a request. Raises EngineError with the code AUTHENTICATION_FAILED."""
        said = _credentials(headers, parameters)
        expected = self._passwords.get(said.name)
        # An unknown user takes as long as a known one.
        right = hmac.compare_digest(said.password.encode(), secrets.token_bytes(8) if expected is None else expected)
        if expected is None or not right:
            raise _failed(f"{said.name}: password is incorrect, or there is no user with such name")
        return User(said.name, writes=said.name == WRITER)


def writer_password(configured: Secret | None, data: Path) -> str:
    """The writer's password: the configured one, or that beside the store in `data`, made where there is none yet.

    The caller holds the store, so nobody else makes one. Raises TracegradError.
    """
    if configured is not None:
        return configured.read()
    file = data / PASSWORD_FILE
    if (kept := kept_password(data)) is not None:
        if file.stat().st_mode & 0o077:
            log.warning("password readable by others file=%s advice='chmod 600'", file)
        return kept
    made = secrets.token_urlsafe(24)
    fresh = file.with_suffix(".fresh")
    try:
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(made + "\n")
        fresh.replace(file)  # whole or not there, for who looks while the collector starts
    except OSError as error:
        raise TracegradError(
            f"cannot keep the writer's password in {file}: {error.strerror}; set [collector] writer_password_file"
        ) from error
    log.info("writer password made file=%s", file)
    return made


def _credentials(headers: Mapping[str, str], parameters: Mapping[str, str]) -> Credentials:
    """From one of ClickHouse's three places; to use two of them is an error there too."""
    in_headers = "X-ClickHouse-User" in headers or "X-ClickHouse-Key" in headers
    authorization = headers.get("Authorization")
    in_parameters = "user" in parameters or "password" in parameters
    if in_headers + (authorization is not None) + in_parameters > 1:
        raise _failed("user and password came in several ways: use headers, HTTP Basic or parameters")
    if authorization is not None:
        return _basic(authorization)
    if in_headers:
        return Credentials(headers.get("X-ClickHouse-User") or READER, headers.get("X-ClickHouse-Key", ""))
    return Credentials(parameters.get("user") or READER, parameters.get("password", ""))


def _basic(authorization: str) -> Credentials:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise _failed(f"Authorization {scheme!r} is not known here: use Basic")
    try:
        name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _failed("Authorization is not HTTP Basic") from error
    return Credentials(name or READER, password)


def _failed(why: str) -> EngineError:
    return EngineError(
        f"Code: {AUTHENTICATION_FAILED}. DB::Exception: Authentication failed: {why}. (AUTHENTICATION_FAILED)"
    )
