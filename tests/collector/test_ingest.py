"""A spool that fails: those who wait are told to send again, and those who come next are served."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spooled import opened

from collector.ingest import Ingest, UnavailableError
from collector.signals import TRACES
from collector.spool import Spool
from collector.spool_cursor import Position

BODY = b"\x0a\x00"
"""One resource without spans."""


@pytest.fixture
async def ingest(tmp_path: Path) -> AsyncIterator[Ingest]:
    spool = opened(tmp_path / "spool", fsync="always")
    started = Ingest(TRACES, spool, "always", lambda: None)
    yield started
    await started.close()
    spool.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the disk is broken"), RuntimeError("a fault of ours")])
async def test_after_a_sync_that_fails_requests_are_to_come_again_and_later_ones_are_taken(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(_: Spool) -> Position:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(Spool, "sync", fail)
        answers = await asyncio.gather(*(ingest.store(BODY) for _ in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [UnavailableError] * 3
        assert not any("fault of ours" in str(answer) for answer in answers)
        assert str(error.args[-1]) in caplog.text
    await asyncio.wait_for(ingest.store(BODY), 10)
