"""The certificate of all ports, for each of their servers. Files are read once, when the process starts."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from tracegrad.errors import SettingsError
from tracegrad.settings import CollectorSettings


@dataclass(frozen=True)
class Tls:
    """One certificate, as the HTTP ports and as OTLP/gRPC want it."""

    context: ssl.SSLContext
    credentials: grpc.ServerCredentials


def load_tls(settings: CollectorSettings) -> Tls | None:
    """What the settings say; None without TLS. Raises SettingsError where a file is not what it should be."""
    cert, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if cert is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password="")  # an encrypted key is an error, not a question at the terminal
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"tls_cert {cert} and tls_key {key} are no certificate with its key in PEM form: {error}"
        ) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"tls_client_ca {client_ca} holds no certificates in PEM form: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return Tls(context, _credentials(cert, key, client_ca))


def _credentials(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(key.read_bytes(), cert.read_bytes())],
        root_certificates=None if client_ca is None else client_ca.read_bytes(),
        require_client_auth=client_ca is not None,
    )
