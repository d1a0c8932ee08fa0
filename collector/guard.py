"""Keeps web pages out. The ports have no password, and a browser on this machine can reach loopback.

A page of another site can send simple POSTs, which carry its Origin, and can have its own name point at 127.0.0.1 (DNS
rebinding), which shows in Host. Programs send no Origin and name the host they connected to.
"""

import ipaddress
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def same_site(bound_host: str) -> Middleware:
    """Refuse requests from pages of other sites with 403. Where the host is not loopback, any name may be used."""
    any_name = not is_loopback(bound_host)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        if not any_name and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            raise web.HTTPForbidden(text=f"this port answers only to loopback names, not to {host!r}\n")
        if origin is not None and urlsplit(origin).netloc != host:
            raise web.HTTPForbidden(text="this port does not answer to web pages of other sites\n")
        return await handler(request)

    return check


def is_loopback(host: str) -> bool:
    """Whether the name or address can only mean this machine."""
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
