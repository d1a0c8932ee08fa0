"""Is everybody there? Asked before the first agent starts, so that no run is lost for want of a process."""

import aiohttp

from tracegrad.errors import UnreachableError
from tracegrad.otlp_access import OtlpAccess
from tracegrad.settings import Settings

PATIENCE = aiohttp.ClientTimeout(total=15)


async def check(settings: Settings) -> None:
    """Raises UnreachableError, saying what to start, unless the collector and the sidecar's model answer."""
    async with aiohttp.ClientSession(timeout=PATIENCE) as session:
        await _check_collector(session, settings.otlp.rstrip("/"), settings.otlp_access)
        await _check_sidecar(session, settings.sidecar_url.rstrip("/"))


async def _check_collector(session: aiohttp.ClientSession, url: str, access: OtlpAccess) -> None:
    try:  # an empty export, which every OTLP receiver accepts
        headers = {"content-type": "application/x-protobuf"} | access.headers()
        tls = access.tls if url.startswith("https:") else True
        async with session.post(f"{url}/v1/traces", data=b"", headers=headers, ssl=tls) as response:
            status = response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UnreachableError(
            f"no collector at {url} ({_why(error)}): start one with `tracegrad up` or `tracegrad collector`"
        ) from error
    if status == 401:
        raise UnreachableError(f"the collector at {url} does not know our token: set otlp_token to the collector's")
    if status != 200:
        raise UnreachableError(f"what answers at {url} takes no spans (status {status}): check the setting otlp")


async def _check_sidecar(session: aiohttp.ClientSession, url: str) -> None:
    try:
        async with session.get(f"{url}/v1/models") as response:
            status = response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UnreachableError(
            f"no sidecar at {url} ({_why(error)}): start one with `tracegrad up` or `tracegrad sidecar`"
        ) from error
    if status in (502, 503, 504):
        raise UnreachableError(
            f"the sidecar at {url} reaches no model (status {status}): start vLLM, or check [[model]]"
        )


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
