"""One sidecar per data directory: two would each take the other's responses, prompts and publications for its own.

The kernel holds the lock for the process, so that no end of it, not even SIGKILL, leaves a lock behind. With
`reuse_port` several share it: one takes over while another one ends.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from tracegrad.errors import TracegradError

log = logging.getLogger(__name__)

FILE = "sidecar.lock"


@contextlib.contextmanager
def data_lock(directory: Path, *, shared: bool) -> Iterator[None]:
    """Hold the directory while the block runs. Raises TracegradError where another sidecar does."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # Agents are served all the same: spans wait in memory until the disk works.
        log.warning("data directory cannot be locked directory=%s error=%s", directory, error)
        yield
        return
    try:
        _lock(file, directory, shared=shared)
        yield
    finally:
        os.close(file)


def _lock(file: int, directory: Path, *, shared: bool) -> None:
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise TracegradError(
            f"another sidecar uses the data directory {directory}: stop it, or choose another one ([sidecar] data);"
            " for one to take over from the other, both need reuse_port = true"
        ) from error
    except OSError as error:
        log.warning("data directory cannot be locked directory=%s error=%s", directory, error)
