"""Addresses of this machine. No proxy that the environment names (`HTTP_PROXY`) is ever asked for one."""

import ipaddress
import ssl
import urllib.request
from http.client import HTTPResponse
from urllib.parse import urlsplit


def is_loopback(host: str | None) -> bool:
    """Whether a host name, or an address with or without brackets, is this machine's own."""
    try:
        return ipaddress.ip_address((host or "").strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def open_url(
    request: urllib.request.Request, timeout_s: float | None = None, tls: ssl.SSLContext | None = None
) -> HTTPResponse:
    """`urllib.request.urlopen`, without a proxy where the address is this machine's own. Raises what that raises."""
    direct = is_loopback(urlsplit(request.full_url).hostname)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})] if direct else []
    if tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=tls))
    opener = urllib.request.build_opener(*handlers)
    answer: HTTPResponse = opener.open(request, timeout=timeout_s)
    return answer
