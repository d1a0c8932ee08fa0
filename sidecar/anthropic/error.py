"""Errors in Anthropic's shape, so that its SDK raises the exception its users know."""

import orjson

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's `type` of an error by its HTTP status."""


def error_body(status: int, message: str) -> bytes:
    """The JSON text of an error answer."""
    kind = KINDS.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return _body(kind, message)


def error_event(message: str, code: str) -> bytes:
    """An error in the middle of a stream: a whole server-sent event."""
    kind = "timeout_error" if code == "timeout" else "api_error"
    return b"event: error\ndata: " + _body(kind, message) + b"\n\n"


def _body(kind: str, message: str) -> bytes:
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})
