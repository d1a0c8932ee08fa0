"""Damaged files of the spool, kept for people to look at."""

import logging
from pathlib import Path

log = logging.getLogger(__name__)

ASIDE = "aside"
KEPT_ASIDE = 4
"""So many are kept, the newest."""


def set_aside(path: Path, root: Path) -> None:
    """Move a file out of the spool under `root`."""
    aside = root / ASIDE
    try:
        aside.mkdir(exist_ok=True, mode=0o700)
        path.rename(aside / path.name)
        for old in sorted(aside.iterdir())[:-KEPT_ASIDE]:
            old.unlink(missing_ok=True)
    except OSError as error:
        log.warning("spool cannot set aside file=%s error=%s", path, error)


def set_headless_aside(path: Path, root: Path) -> bool:
    """The same where the header is missing. False: nothing was written to it yet, and it is deleted."""
    try:
        if not path.stat().st_size:
            path.unlink()
            return False
    except OSError as error:
        log.warning("spool cannot look at file=%s error=%s", path, error)
    log.error("spool damaged file=%s: no header, the file is set aside", path)
    set_aside(path, root)
    return True
