"""Who writes to the embedded store, and where its password is kept. Readers need neither.

The collector makes the password at its first start, in a file beside the rows that only its user can read, so our own
processes of that user on the same machine find it without any set-up. Everywhere else the password is configured.
"""

from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit, urlunsplit

from tracegrad.errors import SettingsError
from tracegrad.loopback import is_loopback
from tracegrad.secret import Secret

WRITER = "writer"
PASSWORD_FILE = "writer.password"  # noqa: S105 - a file's name


class Embedded(Protocol):
    """What must be known of the collector's settings."""

    @property
    def data(self) -> Path:
        """The store's directory."""
        ...

    @property
    def writer_secret(self) -> Secret | None:
        """The configured password; None where there is none."""
        ...


def writing_url(url: str, collector: Embedded) -> str:
    """`url` with the writer's name and password, where they are known and `url` names no user of its own.

    Raises SettingsError where a configured password cannot be read.
    """
    parts = urlsplit(url)
    if parts.username:
        return url
    if collector.writer_secret is not None:
        password = collector.writer_secret.read()
    elif not is_loopback(parts.hostname) or (kept := kept_password(collector.data)) is None:
        return url
    else:
        password = kept
    return urlunsplit(parts._replace(netloc=f"{WRITER}:{quote(password, safe='')}@{parts.netloc}"))


def kept_password(data: Path) -> str | None:
    """The password beside the store in `data`; None where there is none yet, or it is not for us to read."""
    try:
        return (data / PASSWORD_FILE).read_text().strip() or None
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the writer's password cannot be read from {data / PASSWORD_FILE}: {error}") from error
