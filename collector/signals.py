"""The kinds of OTLP data that are stored, and what differs between them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from collector.store import Insertion

PROTO = Path(__file__).parent / "otlp.proto"


@dataclass(frozen=True)
class Signal:
    """One kind of data. `request` and `response` are OTLP's messages, `row` is otlp.proto's that is inserted.

    `table` is the Null table whose views turn such rows into rows of `targets`.
    """

    name: str
    request: type[Message]
    response: type[Message]
    row: str
    table: str
    targets: tuple[str, ...]

    @cached_property
    def insertion(self) -> Insertion:
        """How rows (see rows.py) are stored."""
        settings = {
            "input_format_protobuf_oneof_presence": "1",
            "format_schema_source": "string",
            "format_schema": PROTO.read_text(),
            "format_schema_message_name": self.row,
            "output_format_json_escape_forward_slashes": "0",  # in the text of arrays
            "max_partitions_per_insert_block": "0",  # one old clock in an agent must not make an insert fail
            # The engine would drop what is inserted again on purpose (see delivery.py), and what is equal by chance.
            "insert_deduplicate": "0",
        }
        return Insertion(f"otel.{self.table}", "Protobuf", settings)


TRACES = Signal(
    "traces", ExportTraceServiceRequest, ExportTraceServiceResponse, "SpanRow", "otlp_traces", ("otel_traces",)
)
LOGS = Signal("logs", ExportLogsServiceRequest, ExportLogsServiceResponse, "LogRow", "otlp_logs", ("otel_logs",))
METRICS = Signal(
    "metrics",
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
    "MetricRow",
    "otlp_metrics",
    tuple(f"otel_metrics_{kind}" for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary")),
)
SIGNALS = (TRACES, LOGS, METRICS)
