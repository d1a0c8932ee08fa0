"""Taking ports, all before anything else is done, so that whoever comes second fails before touching anything."""

import contextlib
import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from tracegrad.errors import PortInUseError, SettingsError
from tracegrad.settings import CollectorSettings

BACKLOG = 1024


@dataclass(frozen=True)
class Ports:
    """Sockets that listen, and the host that they are bound to. gRPC takes no socket: its own is to be `released`."""

    host: str
    otlp_http: socket.socket
    otlp_grpc: socket.socket
    clickhouse: socket.socket | None
    """None where the store is a server, which answers for itself."""

    def released(self) -> int:
        """The port of OTLP/gRPC, free for its server to bind."""
        number = port_of(self.otlp_grpc)
        self.otlp_grpc.close()
        return number


@contextlib.contextmanager
def taken(settings: CollectorSettings) -> Iterator[Ports]:
    """All ports of a collector, until the block ends. Raises PortInUseError and SettingsError."""
    with contextlib.ExitStack() as stack:

        def bind(port: int, what: str) -> socket.socket:
            return stack.enter_context(_bind(settings.host, port, what))

        yield Ports(
            settings.host,
            bind(settings.otlp_http_port, "the OTLP/HTTP receiver"),
            bind(settings.otlp_grpc_port, "the OTLP/gRPC receiver"),
            None if settings.server else bind(settings.clickhouse_port, "the ClickHouse HTTP interface"),
        )


def port_of(listener: socket.socket) -> int:
    """The port that it got."""
    return int(listener.getsockname()[1])


def shown(host: str, port: int, scheme: str = "http") -> str:
    """The address as a URL."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _bind(host: str, port: int, what: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(what, host, port) from error
        raise SettingsError(f"cannot listen on {host} port {port} for {what}: {error.strerror}") from error
