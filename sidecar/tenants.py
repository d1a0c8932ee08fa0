"""Keys: who may call.

Invariants: a presented key is compared with every known one in constant time, found or not, so that time tells nothing;
only digests are kept, so that no key can get into a log, a span or another process.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracegrad.errors import SettingsError
from tracegrad.settings import Settings

BEARER = "bearer "


@dataclass(frozen=True)
class Key:
    """One accepted key, and whose it is."""

    owner: str
    digest: bytes
    """SHA-256."""

    @staticmethod
    def of(owner: str, text: str) -> "Key":
        """The key that reads `text`."""
        return Key(owner, hashlib.sha256(text.encode()).digest())


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of a request: `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`; None without one."""
    authorization = headers.get("authorization", "")
    if authorization[: len(BEARER)].lower() == BEARER:
        return authorization[len(BEARER) :].strip()
    return headers.get("x-api-key") or headers.get("api-key")


def owner_of(keys: Sequence[Key], text: str | None) -> str | None:
    """Whose key `text` is; None where it is nobody's."""
    digest = hashlib.sha256((text or "").encode(errors="surrogateescape")).digest()
    owner = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            owner = key.owner
    return owner if text else None


def tenant_keys(settings: Settings) -> tuple[Key, ...]:
    """The keys of `[[tenant]]`. Raises SettingsError where one cannot be read or belongs to two tenants."""
    keys = []
    for tenant in settings.tenant:
        if tenant.secret is not None:
            keys.append(Key.of(tenant.name, tenant.secret.read()))
        else:
            keys.append(Key(tenant.name, bytes.fromhex(tenant.key_sha256 or "")))
    owners: dict[bytes, str] = {}
    for key in keys:
        if owners.setdefault(key.digest, key.owner) != key.owner:
            raise SettingsError(
                f"tenants {owners[key.digest]!r} and {key.owner!r} have the same key: give each its own"
            )
    return tuple(keys)


def admin_keys(settings: Settings) -> tuple[Key, ...]:
    """The key of the admin port; empty where it asks for none. Raises SettingsError."""
    secret = settings.sidecar.admin_secret
    return () if secret is None else (Key.of("admin", secret.read()),)


def with_digests(settings: Settings) -> Settings:
    """A copy that knows tenants by digest alone, and nothing of the admin port's key: for worker processes."""
    keys = tenant_keys(settings)
    tenants = [
        {"name": key.owner, "key_sha256": key.digest.hex(), "max_concurrency": given.max_concurrency}
        for key, given in zip(keys, settings.tenant, strict=True)
    ]
    return settings.with_tenants(tenants)
