"""A key, and where it is kept. Invariant: its text is read when it is needed and never part of a message."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from tracegrad.errors import SettingsError


@dataclass(frozen=True)
class Secret:
    """A key that stands in the configuration itself, in a variable, or in a file of its own."""

    what: str
    given: SecretStr | None
    variable: str | None
    file: Path | None

    def read(self, environ: Mapping[str, str] = os.environ) -> str:
        """The key. Raises SettingsError where it is not there."""
        key = ""
        if self.given is not None:
            key = self.given.get_secret_value()
        elif self.variable is not None:
            key = environ.get(self.variable, "")
        elif self.file is not None:
            try:
                key = self.file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(f"the {self.what} cannot be read from {self.file}: {error}") from error
        if self.variable is not None and self.variable not in environ:
            raise SettingsError(f"environment variable {self.variable} is not set: it should hold the {self.what}")
        if not key or not key.isascii():
            where = self.variable or self.file or "the configuration"
            raise SettingsError(f"the {self.what} is {'not ASCII' if key else 'empty'} in {where}: put one there")
        return key


def one_secret(what: str, given: SecretStr | None, variable: str | None, file: Path | None) -> Secret | None:
    """The key that is given in one of three ways; None where in none. Raises ValueError where in several."""
    count = sum(one is not None for one in (given, variable, file))
    if count > 1:
        raise ValueError(f"the {what} is given more than once: keep it in one place")
    return Secret(what, given, variable, file) if count else None
