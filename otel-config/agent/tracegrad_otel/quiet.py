"""What OpenTelemetry logs in an agent's process: one short line for the whole of its life.

An agent's output belongs to the agent. OTEL_LOG_LEVEL, when set, means that the user wants to see everything: then
logging is left as it is.
"""

import logging
import os
import sys

LOST = "opentelemetry.tracegrad_otel.lost"
"""The logger of who gives up waiting for the collector."""

EXPORT_LOGGERS = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal", LOST)
LONGEST_LINE = 200


class OneLine(logging.Handler):
    """Says the first warning in one line on stderr, and nothing after it."""

    said = False

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a closed stderr is the agent's business."""
        if self.said:
            return
        self.said = True
        try:
            sys.stderr.write(f"tracegrad-otel: {_line(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError, RuntimeError):  # the last: a signal came while it was written to
            return


def _line(record: logging.LogRecord) -> str:
    if record.name.startswith(EXPORT_LOGGERS):
        endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "the collector")
        return f"spans do not reach {endpoint}: start the collector, or set OTEL_EXPORTER_OTLP_ENDPOINT"
    return " ".join(record.getMessage().split())[:LONGEST_LINE]


def limit_logging() -> None:
    """Keep OpenTelemetry's loggers away from the agent's handlers and from Python's last-resort one."""
    if os.environ.get("OTEL_LOG_LEVEL"):
        return
    logger = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, OneLine) for handler in logger.handlers):
        logger.addHandler(OneLine(logging.WARNING))
        logger.propagate = False
