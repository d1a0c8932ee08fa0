"""Gives memory back to the system while statements run, as far as it is freed but kept for the next allocation.

The allocator keeps what is freed for some seconds, which inserts need: they come several times a second and want the
same pages again. Beside big queries that would be as much again as the statements may take, so above `MOST_BYTES` of
the process it is purged.
"""

import ctypes
import logging
import os
from pathlib import Path

from collector.engine import Engine, EngineError

log = logging.getLogger(__name__)

MOST_BYTES = 800 << 20
LOOK_S = 0.05
_RESIDENT = Path("/proc/self/statm")
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Of glibc: large requests, freed in another thread than they came in, leave holes that it keeps."""


def is_high() -> bool:
    """Whether the process has more than it should; never where the system does not tell."""
    return resident_bytes() > MOST_BYTES


def relieve(engine: Engine) -> None:
    """What the engine has freed, and what Python and gRPC have. Blocks for some milliseconds."""
    if _trim is not None:
        _trim(0)
    try:
        with engine.connection() as connection:
            connection.query("SYSTEM JEMALLOC PURGE")
    except EngineError as refused:
        log.warning("cannot give memory back error=%.200s", refused)


def resident_bytes() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        pages = int(_RESIDENT.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
