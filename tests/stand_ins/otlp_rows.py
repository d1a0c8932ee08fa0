"""Rows as protobuf reads them: the messages of otlp.proto that are inserted, over OTLP's own; and bytes by hand."""

from io import BytesIO
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.proto import parse_length_prefixed
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from collector.signals import LOGS, METRICS, TRACES

RECORD = {TRACES: "trace.v1.Span", LOGS: "logs.v1.LogRecord", METRICS: "metrics.v1.Metric"}


def _classes() -> dict[Any, Any]:
    pool = DescriptorPool()
    for module in (common_pb2, resource_pb2, trace_pb2, logs_pb2, metrics_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    found = {}
    for signal, record in RECORD.items():
        file = FileDescriptorProto(name=f"{signal.row}.proto", syntax="proto3", package="rows")
        for module in (common_pb2, resource_pb2, trace_pb2, logs_pb2, metrics_pb2):
            file.dependency.append(module.DESCRIPTOR.name)
        row = file.message_type.add(name=signal.row)
        parts = {"resource": "resource.v1.Resource", "record": record, "scope": "common.v1.InstrumentationScope"}
        for number, (name, kind) in enumerate(parts.items(), start=1):
            row.field.add(
                name=name, number=number, label=1, type=11, type_name=f".opentelemetry.proto.{kind}"
            )  # optional, a message
        for number, name in ((4, "resource_schema_url"), (5, "scope_schema_url")):
            row.field.add(name=name, number=number, label=1, type=FieldDescriptorProto.TYPE_STRING)
        row.field.add(name="ingest_id", number=6, label=1, type=FieldDescriptorProto.TYPE_FIXED64)
        pool.Add(file)
        found[signal] = GetMessageClass(pool.FindMessageTypeByName(f"rows.{signal.row}"))
    return found


ROW = _classes()


def rows_of(signal: Any, data: bytes) -> list[Any]:
    """The rows in what is inserted."""
    stream, found = BytesIO(data), []
    while (row := parse_length_prefixed(ROW[signal], stream)) is not None:
        found.append(row)
    return found


def varint(value: int, longer: int = 0) -> bytes:
    """`value`, in `longer` bytes more than it needs."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value | (0x80 if longer else 0))
    out += b"\x80" * (longer - 1)
    if longer:
        out.append(0)
    return bytes(out)


def field(number: int, body: bytes, *, longer_tag: int = 0, longer_size: int = 0) -> bytes:
    """A field with a length: a string, bytes or a message."""
    return varint(number << 3 | 2, longer_tag) + varint(len(body), longer_size) + body
