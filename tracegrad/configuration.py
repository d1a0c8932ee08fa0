"""The configuration of a process that reads it again while it runs.

Invariant: a file that was read once is there at every later reading. One that has gone, or is empty, as an editor
leaves it for a moment, is refused, and never taken for a wish to have the defaults: they ask for no keys.
"""

from pathlib import Path

from tracegrad import settings
from tracegrad.errors import SettingsError


class Configuration:
    """The file that is named, or the default one where it exists; and the environment."""

    def __init__(self, file: Path | None) -> None:
        self._named = file
        self._seen = False

    def read(self) -> settings.Settings:
        """What it says now. Raises SettingsError."""
        there = _has_content(file := self._named or settings.DEFAULT_FILE)
        if self._seen and not there:
            raise SettingsError(f"{file} is gone or empty, and was not when it was read last: put it back")
        chosen = settings.load(self._named)
        self._seen = self._seen or there
        return chosen


def _has_content(file: Path) -> bool:
    try:
        return bool(file.read_bytes().strip())
    except FileNotFoundError:
        return False
    except OSError:
        return True  # there, and whoever reads it says what is wrong
