"""OTLP export requests out of records that are encoded already, and what a collector's answer says of them."""

import email.utils
import time
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

TRACES, LOGS = "/v1/traces", "/v1/logs"
"""The paths of OTLP/HTTP."""

Record = bytes | memoryview
"""One encoded span or log record."""


def export_request(resource: bytes, scope: bytes, records: Sequence[Record]) -> bytes:
    """An ExportTraceServiceRequest, or by the same field numbers an ExportLogsServiceRequest, out of encoded parts.

    Every record is copied once.
    """
    parts: list[Record] = [_head(1, len(scope)), scope]
    size = len(parts[0]) + len(scope)
    for record in records:
        head = _head(2, len(record))
        parts += (head, record)
        size += len(head) + len(record)
    of_resource = _head(1, len(resource)) + resource + _head(2, size)
    return b"".join((_head(1, len(of_resource) + size), of_resource, *parts))


def _head(number: int, length: int) -> bytes:
    """What stands before a length-delimited field of a protobuf message."""
    head = bytearray([number << 3 | 2])
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)


def rejection(path: str, answer: bytes) -> tuple[int, str]:
    """How many records a 200 says were not taken (OTLP's partial success), and why."""
    try:
        if path == TRACES:
            traces = ExportTraceServiceResponse.FromString(answer).partial_success
            return traces.rejected_spans, traces.error_message
        logs = ExportLogsServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return 0, ""
    return logs.rejected_log_records, logs.error_message


def retry_after_s(value: str | None) -> float:
    """The seconds that a `Retry-After` header (seconds, or a date) asks to wait; 0 without one, or for nonsense."""
    if not value:
        return 0.0
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0
