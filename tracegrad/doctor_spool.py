"""Do the spans get away? What the sidecar says of its spool: a disk that takes none, one that fills, spans lost."""

import re
from collections.abc import Iterator

import aiohttp

from tracegrad.doctor_finding import Finding
from tracegrad.settings import Settings

CHECK = "span spool"
NEARLY_FULL = 0.8
MEBI = 1 << 20

_SAMPLE = re.compile(r"^tracegrad_sidecar_(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


async def examine_spool(settings: Settings) -> list[Finding]:
    """Nothing where the sidecar does not answer, which another check reports."""
    secret = settings.sidecar.admin_secret
    headers = {"authorization": f"Bearer {secret.read()}"} if secret is not None else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(settings.sidecar_admin_url + "/metrics", headers=headers) as response,
        ):
            page = await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return []
    return list(judged(page, settings))


def judged(page: str, settings: Settings) -> Iterator[Finding]:
    """What the metrics say."""
    values = {(name, labels or ""): float(value) for name, labels, value in _SAMPLE.findall(page)}
    waiting = values.get(("spool_waiting_bytes", ""))
    if waiting is None:
        return
    chosen = settings.sidecar
    room = chosen.spool_bytes * chosen.workers
    lost = sum(n for (name, labels), n in values.items() if name == "spans_total" and 'state="dropped_' in labels)
    if values.get(("spool_disk_failing", "")):
        advice = f"make room under {chosen.data}, or let the sidecar write there: its log says what the disk answered"
        yield Finding(CHECK, "fail", "the disk takes no spans: they wait in memory, and die with the process", advice)
    elif waiting > NEARLY_FULL * room:
        what = f"{waiting / MEBI:.0f} of {room / MEBI:.0f} MiB wait for the collector; what does not fit is lost"
        advice = "see why the collector does not take them, or raise [sidecar] spool_bytes"
        yield Finding(CHECK, "warn", what, advice)
    else:
        yield Finding(CHECK, "ok", f"{waiting / MEBI:.1f} of {room / MEBI:.0f} MiB wait for the collector")
    if lost:
        what = f"{lost:.0f} spans lost since the sidecar started"
        yield Finding(CHECK, "warn", what, "its log says why: the spool was full, or the collector refused them")
