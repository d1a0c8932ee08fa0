"""Work that runs beside the calls for as long as a block runs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

log = logging.getLogger(__name__)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` until the block ends. Where it ends by itself with an error, that is logged, and the block goes on."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report_death)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _report_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("task died, restart the sidecar task=%s", task.get_name(), exc_info=error)
