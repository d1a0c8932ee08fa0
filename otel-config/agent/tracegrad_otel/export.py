"""Batch processors that end in bounded time, over exporters that survive a fork.

An exporter's connection pool must not be used on both sides of a fork: two processes would write into one socket.
So each process makes its own exporter, and never touches (nor frees) the one it inherited.
"""

import os
import random
from collections.abc import Sequence
from typing import Any, cast

from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk._shared_internal import BatchProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from tracegrad_otel import ending


class ForkSafeExporter:
    """A span or log exporter; `exporter`'s type must be constructible without arguments, as the SDK constructs it."""

    def __init__(self, exporter: SpanExporter | LogRecordExporter) -> None:
        self._type = type(exporter)
        self._by_process: dict[int, Any] = {os.getpid(): exporter}

    @property
    def current(self) -> Any:
        """This process's exporter."""
        pid = os.getpid()
        if pid not in self._by_process:
            self._by_process[pid] = self._type()
        return self._by_process[pid]

    def export(self, batch: Sequence[Any]) -> Any:
        """Send one batch; the result is the exporter's."""
        return self.current.export(batch)

    def shutdown(self) -> None:
        """End this process's exporter."""
        self.current.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Exporters hold nothing back; batches wait in the processor."""
        return bool(self.current.force_flush(timeout_millis))


class _SpanProcessor(BatchSpanProcessor):
    def shutdown(self) -> None:
        _shut_down(self._batch_processor)


class _LogProcessor(BatchLogRecordProcessor):
    def shutdown(self) -> None:
        _shut_down(self._batch_processor)


def _shut_down(batches: BatchProcessor[Any]) -> None:
    batches.shutdown(timeout_millis=int(1000 * ending.remaining_s()))
    ending.say_lost(batches._worker_thread)


def span_processor(exporter: SpanExporter) -> BatchSpanProcessor:
    """What the SDK puts between spans and one exporter."""
    return _SpanProcessor(cast(SpanExporter, ForkSafeExporter(exporter)))


def log_processor(exporter: LogRecordExporter) -> BatchLogRecordProcessor:
    """What the SDK puts between log records and one exporter."""
    return _LogProcessor(cast(LogRecordExporter, ForkSafeExporter(exporter)))


def leave_random_alone() -> None:
    """Give the exporter's retry jitter a generator of its own.

    It draws from the module `random` on every export, in its own thread, which would make an agent that seeds
    `random` irreproducible.
    """
    try:
        from opentelemetry.exporter.otlp.common import http
    except ImportError:
        return  # another version, or another exporter
    if hasattr(http, "random"):
        vars(http)["random"] = random.Random()  # noqa: S311 - jitter
