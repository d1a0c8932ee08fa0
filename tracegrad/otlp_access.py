"""What a collector asks of those who send to it: a token, and TLS. For our own senders, and for the agents we start."""

import functools
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tracegrad.errors import SettingsError
from tracegrad.secret import Secret


@dataclass(frozen=True)
class OtlpAccess:
    """`ca`: who vouches for the collector, None for those whom the system trusts; `cert`, `key`: who vouches for us."""

    token: Secret | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def headers(self) -> dict[str, str]:
        """What every request bears. Raises SettingsError where the token is not there."""
        return {} if self.token is None else {"authorization": f"Bearer {self.token.read()}"}

    @functools.cached_property
    def tls(self) -> ssl.SSLContext:
        """For an https address. Raises SettingsError where a file is not what it should be."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"otlp_ca {self.ca} holds no certificates in PEM form: {error}") from error
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                raise SettingsError(
                    f"otlp_cert {self.cert} and otlp_key {self.key} are no certificate with its key: {error}"
                ) from error
        return context

    def environment(self) -> dict[str, str]:
        """The same in OpenTelemetry's variables, for the exporters of an agent. Raises SettingsError."""
        headers = ",".join(f"{name}={quote(value, safe='')}" for name, value in self.headers().items())
        files = {
            "OTEL_EXPORTER_OTLP_CERTIFICATE": self.ca,
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": self.cert,
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": self.key,
        }
        chosen = {name: str(file.absolute()) for name, file in files.items() if file is not None}
        return chosen | ({"OTEL_EXPORTER_OTLP_HEADERS": headers} if headers else {})
