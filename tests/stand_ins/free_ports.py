"""Ports for servers that a test starts later, or where it wants nobody.

A port that the system has just given and taken back may be the next one that it gives somebody else. So these are
below all that it gives of itself (see `ip_local_port_range`), each is told once, and tests that run side by side have
blocks of their own.
"""

import itertools
import os
import random
import socket

LOWEST, BLOCK = 20000, 2500


def _own() -> list[int]:
    """The ports of this process's block, in no order: another run of the tests may be under way."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    ports = list(range(LOWEST + worker * BLOCK, LOWEST + (worker + 1) * BLOCK))
    random.SystemRandom().shuffle(ports)
    return ports


_next = itertools.cycle(_own())


def free_port() -> int:
    """A port that nobody listens on."""
    for port in itertools.islice(_next, BLOCK):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")
