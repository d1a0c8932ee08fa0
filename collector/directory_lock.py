"""A directory that one process at a time works in. The lock goes when its holder does, however that ends."""

import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import IO, Any

from tracegrad.errors import TracegradError

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO, errno.ESTALE}
"""What file systems answer, often of the network, that cannot lock or have lost their lock server."""


def hold(directory: Path, what: str, option: str) -> IO[Any]:
    """Make `directory` where it is not there, and hold it until the file that this returns is closed.

    `what` is in it (`the store`); `option` chooses another one (`--data`). Raises TracegradError, which says who holds
    it, or why it cannot be held.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "collector.lock").open("a+")
    except OSError as error:
        raise TracegradError(f"cannot keep {what} in {directory}: {error.strerror}; choose another {option}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(f"{os.getpid()} on {socket.gethostname()}")
        lock.flush()
    except BlockingIOError as error:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise TracegradError(
            f"{what} in {directory} is open in another collector (process {holder}): stop it or choose another {option}"
        ) from error
    except OSError as error:
        lock.close()
        if error.errno in _NO_LOCKS:
            raise TracegradError(
                f"cannot keep {what} in {directory}: its file system does not lock files ({error.strerror}), "
                f"so nothing would keep a second collector out; choose a local directory with {option}"
            ) from error
        raise TracegradError(f"cannot keep {what} in {directory}: {error.strerror}; choose another {option}") from error
    return lock
