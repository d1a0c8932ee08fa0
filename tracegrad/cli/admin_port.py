"""The sidecar's admin port, as the commands ask it."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tracegrad import settings
from tracegrad.errors import TracegradError, UnreachableError
from tracegrad.loopback import open_url

TIMEOUT_S = 120.0


class AdminError(TracegradError):
    """The sidecar refused, in its own words."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class AdminPort:
    """One sidecar's admin port."""

    def __init__(self, config: Path | None) -> None:
        """From a configuration file. Raises SettingsError."""
        chosen = settings.load(config)
        self._url = chosen.sidecar_admin_url
        self._secret = chosen.sidecar.admin_secret

    def ask(self, method: str, *path: str, body: Any = None, timeout_s: float | None = TIMEOUT_S) -> dict[str, Any]:
        """What the sidecar answers. Raises UnreachableError, and AdminError where it refuses."""
        url = "/".join((self._url, *(quote(part, safe="") for part in path)))
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(url, content, method=method)  # noqa: S310 - settings hold only http addresses
        request.add_header("content-type", "application/json")
        if self._secret is not None:
            request.add_header("authorization", f"Bearer {self._secret.read()}")
        try:
            with open_url(request, timeout_s) as answer:
                return self._object(answer.read())
        except urllib.error.HTTPError as error:
            told = self._object(error.read()).get("error")
            message = told.get("message") if isinstance(told, dict) else told
            raise AdminError(str(message or error), error.code) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error) or type(error).__name__
            raise UnreachableError(
                f"no sidecar answers at {self._url} ({reason}): start one with `tracegrad sidecar`, or set"
                " sidecar_admin_url"
            ) from error

    def _object(self, content: bytes) -> dict[str, Any]:
        try:
            value = json.loads(content)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise TracegradError(f"what answers at {self._url} is not a sidecar's admin port: set sidecar_admin_url")
        return value
