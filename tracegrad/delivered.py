"""To read what was just sent: rows are in the store some tenths of a second after the collector acknowledged them."""

import logging
from urllib.parse import urlsplit

import aiohttp

from tracegrad.errors import SettingsError
from tracegrad.settings import Settings

log = logging.getLogger(__name__)

WITHIN_S = 10.0


async def wait_until_delivered(settings: Settings, within_s: float = WITHIN_S) -> bool:
    """Return when all that our collector has acknowledged so far is in its store; False where that is not known.

    It is not known where the collector is another program or away, or where its store does not keep up. That is no
    reason not to read: what is there is right, and more will come.
    """
    url = f"{settings.otlp}/delivered?within_s={within_s:g}"
    try:
        tls = settings.otlp_access.tls if urlsplit(url).scheme == "https" else True
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=within_s + 5)) as session,
            session.get(url, headers=settings.otlp_access.headers(), ssl=tls) as answer,
        ):
            delivered = answer.status == 200
            said: object = f"status {answer.status}"
    except (TimeoutError, aiohttp.ClientError, SettingsError) as error:
        delivered, said = False, error
    if not delivered:
        log.debug("not known whether the store has all that was sent url=%s reason=%s", url, said)
    return delivered
