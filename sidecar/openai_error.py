"""Answers in OpenAI's error shape, so that every SDK raises the exception its users know."""

import orjson
from aiohttp import web


def openai_error(status: int, message: str, *, code: str | None = None, kind: str | None = None) -> web.Response:
    """An error answer. `kind` is OpenAI's `type`; None takes the one that belongs to the status."""
    return web.Response(
        status=status, body=error_body(message, code=code, kind=kind or error_kind(status)), headers=JSON
    )


def error_body(message: str, *, code: str | None = None, kind: str = "server_error") -> bytes:
    """The JSON text of OpenAI's error shape; also the data of an error event in a stream."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def error_kind(status: int) -> str:
    """OpenAI's `type` of an error with this HTTP status. Of a bad key (401) it is that of a bad request."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


JSON = {"content-type": "application/json"}
