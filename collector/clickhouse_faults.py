"""What is wrong with a server as the store, in one sentence that says which setting to change.

Invariant: no message holds a password, or bytes of an answer that is not ClickHouse's.
"""

import re
from collections.abc import Collection

from urllib3.exceptions import MaxRetryError

from collector.store import StoreError
from tracegrad.errors import TracegradError
from tracegrad.no_answer import NoAnswer, no_answer
from tracegrad.store_address import StoreAddress

UNKNOWN_SETTING = 115
READONLY = 164
ACCESS_DENIED = 497

_NO_INTERFACE = "what answers there is no ClickHouse HTTP interface, check --store"
_ADVICE = {
    NoAnswer.WANTS_TLS: "add secure=1 to --store",
    NoAnswer.NO_TLS: "take secure=1 out of --store, or name a port that does",
    NoAnswer.NOT_TRUSTED: "add ca_cert=FILE to --store",
    NoAnswer.WANTS_CERTIFICATE: "add client_cert=FILE and client_cert_key=FILE to --store",
    NoAnswer.CLOSED: "check --store, with secure=1 if it wants TLS",
}
_STATUS = re.compile(r"HTTP status (\d{3})")


def reason(error: BaseException, *, connecting: bool) -> str:
    """Why no answer came. `connecting`: none ever did, so that the address may be to blame."""
    why = no_answer(error)
    if why is NoAnswer.NO_HTTP:
        return _NO_INTERFACE
    if why is NoAnswer.CLOSED and not connecting:
        return f"it {why.value}"
    if why is not None:
        return f"what answers there {why.value}: {_ADVICE[why]}"
    if error.__cause__ is None:  # not of the network: somebody answered
        if (status := _STATUS.search(str(error))) is None:
            return _NO_INTERFACE if str(error).startswith("Unexpected response") else _printable(str(error))
        # From 500 on it may well be somebody between us and a server.
        return f"HTTP status {status[1]}" if int(status[1]) >= 500 else f"{_NO_INTERFACE} (HTTP status {status[1]})"
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, MaxRetryError) and error.reason is not None:
        error = error.reason
    return _printable(str(error).rpartition(": ")[2].strip("()' ")) or type(error).__name__


def explained(error: StoreError, address: StoreAddress, known: Collection[str]) -> TracegradError | None:
    """What a server said of our schema or of an insert without rows; None where it may be over by itself.

    `known`: the names of the server's settings.
    """
    said = _printable(str(error).removeprefix(f"{address}: "))
    unknown = [name for name in address.settings if name not in known]
    if error.code == UNKNOWN_SETTING and unknown:
        return TracegradError(f"{unknown[0]} is no ClickHouse setting of {address}: see --store")
    if error.code in (READONLY, ACCESS_DENIED):
        writer = str(address).replace("://", "://writer@")
        return TracegradError(
            f"user {address.user or 'default'} may not write to {address}: name one who may, as --store {writer} "
            f"with store_password ({said})"
        )
    if not error.retryable:
        return TracegradError(f"{address} takes no inserts: correct the settings in --store ({said})")
    return None


def _printable(text: str) -> str:
    """One line, not long, without control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:300]
