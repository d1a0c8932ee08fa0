"""Why what is at an address gave no answer in HTTP, as far as an exception tells: for messages that say what to do.

Invariant: nothing of what the other side sent comes out of here, since it may be bytes of any protocol.
"""

import ssl
from collections.abc import Iterator
from enum import Enum
from http.client import BadStatusLine, HTTPException, RemoteDisconnected

_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
_WANTS_CERTIFICATE = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA")
_TLS_ALERT = ("\x15\x03", "\x16\x03")


class NoAnswer(Enum):
    """What is there instead of an answer. `CLOSED` is also how some servers that want TLS refuse those without."""

    NO_HTTP = "speaks no HTTP"
    WANTS_TLS = "wants TLS"
    NO_TLS = "speaks no TLS"
    NOT_TRUSTED = "shows a certificate that is not trusted here"
    WANTS_CERTIFICATE = "refuses our certificate, or that we show none"
    CLOSED = "closed the connection without an answer"


def no_answer(error: BaseException) -> NoAnswer | None:
    """Which it is; None where it is something else, such as a port where nobody listens."""
    return next((found for one in _chain(error) if (found := _said_by(one)) is not None), None)


def _said_by(error: BaseException) -> NoAnswer | None:
    match error:
        case ssl.SSLCertVerificationError():
            return NoAnswer.NOT_TRUSTED
        case ssl.SSLError(reason=str(why)) if any(name in why for name in _NOT_TLS):
            return NoAnswer.NO_TLS
        case ssl.SSLError(reason=str(why)) if any(name in why for name in _WANTS_CERTIFICATE):
            return NoAnswer.WANTS_CERTIFICATE
        case RemoteDisconnected() | ConnectionResetError() | ssl.SSLEOFError():
            return NoAnswer.CLOSED
        case HTTPException():
            alert = isinstance(error, BadStatusLine) and str(error).startswith(_TLS_ALERT)
            return NoAnswer.WANTS_TLS if alert else NoAnswer.NO_HTTP
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that it wraps, in any of the ways that libraries have."""
    seen: list[BaseException] = []
    found: list[object] = [error]
    while found:
        one = found.pop(0)
        if isinstance(one, BaseException) and one not in seen:
            seen.append(one)
            yield one
            found += [one.__cause__, getattr(one, "reason", None), one.__context__, *one.args]
