"""From files to the collector: everything is read once before anything is sent, then read again and sent.

In memory are one value of a file, a batch of records, and of every trace from when to when it was.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from google.protobuf.message import Message

from tracegrad.errors import TracegradError, UnreachableError
from tracegrad.importing.foreign import ForeignScore, ForeignSpan
from tracegrad.importing.reading import ForeignFile
from tracegrad.importing.records import SERVICE, Extent, Naming, root_record, score_record, span_record
from tracegrad.otlp_client import Delivered, OtlpClient
from tracegrad.otlp_request import LOGS, TRACES
from tracegrad.settings import Settings

BATCH_BYTES = 4 << 20
AWAY_S = 20.0
"""How long a collector that takes nothing is waited for."""

Progress = Callable[[int], None]
"""Told how many records were done, now and then."""


@dataclass
class Imported:
    """What the files hold. `silent_calls`: calls without any message."""

    traces: int = 0
    spans: int = 0
    calls: int = 0
    silent_calls: int = 0
    tools: int = 0
    scores: int = 0
    formats: dict[str, int] = field(default_factory=dict)
    """How many files were of which format."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass(frozen=True)
class Import:
    """Files that were read, and what they hold. `extents`: of the traces, whose parts may lie in several files."""

    files: Sequence[ForeignFile]
    imported: Imported
    extents: dict[bytes, Extent]
    rollout_id: str | None
    task_id: str | None

    def records(self) -> Iterator[tuple[str, bytes]]:
        """The path of OTLP/HTTP and the record, of all there is. Raises InputError."""
        rootless = {trace for trace, extent in self.extents.items() if not extent.has_root}
        for file in self.files:
            naming = Naming(file.format, self.rollout_id, self.task_id)
            for found in file.read():
                if isinstance(found, ForeignScore):
                    yield LOGS, _encoded(score_record(found, naming))
                    continue
                yield TRACES, _encoded(span_record(found, naming))
                if found.trace_id in rootless:
                    rootless.discard(found.trace_id)
                    root = root_record(found.trace_id, self.extents[found.trace_id], naming)
                    yield TRACES, _encoded(root)


def read(
    files: Sequence[ForeignFile],
    rollout_id: str | None = None,
    task_id: str | None = None,
    progress: Progress | None = None,
) -> Import:
    """Everything read and made into records once, so that nothing is sent of what cannot be read to its end."""
    imported = Imported()
    extents: dict[bytes, Extent] = {}
    done = 0
    for file in files:
        naming = Naming(file.format, rollout_id, task_id)
        imported.formats[file.format] = imported.formats.get(file.format, 0) + 1
        for found in file.read():
            if isinstance(found, ForeignScore):
                score_record(found, naming)
                imported.scores += 1
            else:
                span_record(found, naming)
                known = extents.get(found.trace_id) or Extent(found.start_ns, found.end_ns, has_root=False)
                extents[found.trace_id] = known.with_span(found)
                _count(imported, found)
            done += 1
            if progress is not None and done % 1000 == 0:
                progress(done)
    imported.traces = len(extents)
    return Import(files, imported, extents, rollout_id, task_id)


async def send(what: Import, settings: Settings, progress: Progress | None = None) -> None:
    """Until the collector has acknowledged all. Raises UnreachableError, and TracegradError where it refuses any."""
    counts = Delivered()
    async with OtlpClient(settings.otlp, SERVICE, counts, settings.otlp_access) as client:
        path, size, done = "", 0, 0
        batch: list[bytes] = []
        for of, record in what.records():
            if batch and (of != path or size + len(record) > BATCH_BYTES):
                await _deliver(client, path, batch, settings)
                done += len(batch)
                if progress is not None:
                    progress(done)
                batch, size = [], 0
            path = of
            batch.append(record)
            size += len(record)
        if batch:
            await _deliver(client, path, batch, settings)
    if counts.dropped_refused:
        raise TracegradError(
            f"the collector refused {counts.dropped_refused} of {counts.dropped_refused + counts.sent} records, and "
            "the log above says why: import again once that is mended, which doubles nothing"
        )


async def _deliver(client: OtlpClient, path: str, batch: list[bytes], settings: Settings) -> None:
    delivering = asyncio.create_task(client.deliver(path, batch))
    while not delivering.done():
        await asyncio.wait((delivering,), timeout=AWAY_S)
        if not delivering.done() and client.away:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)
            raise UnreachableError(
                f"no collector takes records at {settings.otlp}: start one with `tracegrad collector`, or set "
                "TRACEGRAD_OTLP; then import again, which doubles nothing"
            )
    await delivering


def _count(imported: Imported, span: ForeignSpan) -> None:
    imported.spans += 1
    imported.tools += span.tool is not None
    if span.call is not None:
        imported.calls += 1
        imported.silent_calls += not (span.call.input_messages or span.call.output_messages)


def _encoded(record: Message) -> bytes:
    encoded: bytes = record.SerializeToString()
    return encoded
