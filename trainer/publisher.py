"""Hands new weights to the live engines through the sidecar's admin interface, and asks what they serve."""

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracegrad.errors import SettingsError, TracegradError, UnreachableError
from tracegrad.loopback import open_url

ASK_TIMEOUT_S, PUBLISH_TIMEOUT_S = 10.0, 900.0
NOT_NOW = frozenset({502, 503, 504})
"""Answers of a sidecar whose engine is not there: trying again later may help."""


@dataclass(frozen=True)
class Served:
    """`version`: the lowest that an engine serves; None when no engine says. `all_known`: whether every engine says.

    An engine does not say while it is away, and after a publication that failed half-way. `rolled_back_from`: the newer
    version that was published before somebody published an older one again; None where the newest is the policy's.
    """

    version: int | None
    all_known: bool
    rolled_back_from: int | None = None


class Publisher:
    """One sidecar's admin interface. Every method raises UnreachableError when nobody answers."""

    def __init__(self, sidecar: str, key: str | None = None) -> None:
        if not sidecar.startswith(("http://", "https://")):
            raise SettingsError(f"bad setting publish.sidecar: {sidecar!r} is not an http:// address")
        self._url = sidecar.rstrip("/")
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})

    def served(self, policy: str) -> Served:
        """What the engines behind the sidecar serve."""
        policies = self._ask("GET", "/policies", None, ASK_TIMEOUT_S)["policies"]
        found = next((item for item in policies if item["name"] == policy), None)
        if found is None:
            known = ", ".join(item["name"] for item in policies) or "none"
            raise SettingsError(
                f"the sidecar at {self._url} has no policy {policy!r} (it has: {known}): set `policy` in a [[model]] "
                "of its configuration, or data.policy in the training configuration"
            )
        versions = [replica["version"] for replica in found["replicas"]]
        lowest = min((version for version in versions if version is not None), default=None)
        return Served(lowest, None not in versions, found.get("rolled_back_from"))

    def publish(self, policy: str, version: int, weights: Path, sha256: str) -> None:
        """Have every replica serve `weights` as `version`. Publishing the same again changes nothing."""
        body = {"version": version, "weights": str(weights.resolve()), "sha256": sha256}
        self._ask("POST", f"/policies/{urllib.parse.quote(policy, safe='')}/publish", body, PUBLISH_TIMEOUT_S)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self._url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers=self._headers,
            method=method,
        )
        try:
            with open_url(request, timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            kind = UnreachableError if error.code in NOT_NOW else TracegradError
            raise kind(
                f"the sidecar at {self._url} answered {error.code} to {method} {path}: {_said(error)}"
            ) from error
        except OSError as error:
            raise UnreachableError(
                f"no sidecar at {self._url} ({error}): start one with `tracegrad up`, or set publish.sidecar"
            ) from error
        except ValueError as error:
            raise TracegradError(f"{self._url}{path} is not a sidecar's admin interface: {error}") from error


def _said(error: urllib.error.HTTPError) -> str:
    text = error.read(4000).decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())
