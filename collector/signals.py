"""The kinds of OTLP data that are stored, and what differs between them."""

from dataclasses import dataclass
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

from collector.engine import Connection
from collector.store import Insertion

PROTO = Path(__file__).parent / "otlp.proto"


@dataclass(frozen=True)
class Signal:
    """`table` is the Null table whose view turns requests into rows; `request` and `response` are OTLP's messages."""

    name: str
    table: str
    request: type[Message]
    response: type[Message]

    @property
    def insertion(self) -> Insertion:
        """How one request, or several concatenated (protobuf merges them), are stored."""
        settings = {
            "input_format_protobuf_oneof_presence": "1",
            "format_schema_source": "string",
            "format_schema": PROTO.read_text(),
            "format_schema_message_name": self.request.DESCRIPTOR.name,
            "output_format_json_escape_forward_slashes": "0",  # in the text of arrays
            "max_partitions_per_insert_block": "0",  # one old clock in an agent must not make an insert fail
        }
        return Insertion(f"otel.{self.table}", "ProtobufSingle", settings)

    def insert(self, connection: Connection, body: bytes) -> None:
        """Store one request, or several concatenated. Raises EngineError."""
        chosen = self.insertion
        connection.insert(f"INSERT INTO {chosen.table}", chosen.settings_clause(), chosen.input_format, body)


TRACES = Signal("traces", "otlp_traces", ExportTraceServiceRequest, ExportTraceServiceResponse)
LOGS = Signal("logs", "otlp_logs", ExportLogsServiceRequest, ExportLogsServiceResponse)
METRICS = Signal("metrics", "otlp_metrics", ExportMetricsServiceRequest, ExportMetricsServiceResponse)
