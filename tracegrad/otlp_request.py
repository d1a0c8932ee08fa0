"""OTLP export requests out of records that are encoded already, and what a collector's 200 says of them."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

TRACES, LOGS = "/v1/traces", "/v1/logs"
"""The paths of OTLP/HTTP."""


def export_request(resource: bytes, scope: bytes, records: Sequence[bytes]) -> bytes:
    """An ExportTraceServiceRequest, or by the same field numbers an ExportLogsServiceRequest, out of encoded parts."""
    of_scope = b"".join([_field(1, scope), *(_field(2, record) for record in records)])
    return _field(1, _field(1, resource) + _field(2, of_scope))


def _field(number: int, content: bytes) -> bytes:
    """One length-delimited field of a protobuf message."""
    head, rest = bytearray([number << 3 | 2]), len(content)
    while rest > 0x7F:
        head.append(rest & 0x7F | 0x80)
        rest >>= 7
    head.append(rest)
    return bytes(head) + content


def rejection(path: str, answer: bytes) -> str:
    """What a 200 says that was not taken (OTLP's partial success), as `N message`; empty when all was."""
    try:
        if path == TRACES:
            traces = ExportTraceServiceResponse.FromString(answer).partial_success
            rejected, message = traces.rejected_spans, traces.error_message
        else:
            logs = ExportLogsServiceResponse.FromString(answer).partial_success
            rejected, message = logs.rejected_log_records, logs.error_message
    except DecodeError:
        return ""
    return f"{rejected} {message}" if rejected else ""
