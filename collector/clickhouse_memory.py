"""Gives memory back to the system, beside statements and after inserts: what is freed but kept for the next allocation.

The allocator keeps what is freed for some seconds, which inserts need: they come several times a second and want the
same pages again. Beside big queries that would be as much again as the statements may take, so above `MOST_BYTES` of
the process it is purged.
"""

import ctypes
import logging

from collector.engine import Engine, EngineError
from collector.metrics import resident_bytes

log = logging.getLogger(__name__)

MOST_BYTES = 800 << 20
LOOK_S = 0.05
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Of glibc: large requests, freed in another thread than they came in, leave holes that it keeps."""


def is_high(most_bytes: int = MOST_BYTES) -> bool:
    """Whether the process has more than it should; never where the system does not tell."""
    return (resident_bytes() or 0) > most_bytes


def relieve(engine: Engine) -> None:
    """What the engine has freed, and what Python and gRPC have. Blocks for some milliseconds."""
    if _trim is not None:
        _trim(0)
    try:
        with engine.connection() as connection:
            connection.query("SYSTEM JEMALLOC PURGE")
    except EngineError as refused:
        log.warning("cannot give memory back error=%.200s", refused)
