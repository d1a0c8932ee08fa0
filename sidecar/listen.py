"""Taking ports. A port that anybody listens on is refused, even where both would share it: only `shared` shares it."""

import errno
import socket

from tracegrad.errors import PortInUseError, TracegradError

BACKLOG = 1024


def claim(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket bound to the address, not listening yet. Raises PortInUseError and TracegradError."""
    try:
        # One name may have addresses of both families, such as localhost: clients expect the older one to answer.
        found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))
        family, _, _, _, address = found[0]
        claimed = socket.socket(family, socket.SOCK_STREAM)
        try:
            claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                share(claimed)
            claimed.bind(address)
        except BaseException:
            claimed.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError("the sidecar", host, port) from error
        raise TracegradError(f"the sidecar cannot listen on {host}:{port} ({error}): choose another address") from error
    claimed.setblocking(False)
    return claimed


def share(claimed: socket.socket) -> None:
    """Let other sockets of this user have the same address. The kernel hands connections to those that listen."""
    claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def port_of(claimed: socket.socket) -> int:
    """The port that it got."""
    return int(claimed.getsockname()[1])
