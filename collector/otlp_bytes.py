"""OTLP's messages as the official Collector reads them: a string is whatever bytes it holds, UTF-8 or not.

Python's protobuf refuses a whole request for one string that is no UTF-8. These classes have OTLP's field numbers and
names, but every string is `bytes`; and what is inside an array or a map is `bytes` too, to be parsed level by level:
protobuf reads only a hundred messages in one another.
"""

from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

_pool = DescriptorPool()


def of_bytes(message: type[Message]) -> type[Any]:
    """The class that reads the same bytes as OTLP's `message`, and whose strings are bytes."""
    return _class_like(message.DESCRIPTOR)


@cache
def _class_like(message: Descriptor) -> type[Any]:
    _add(message.file)
    found: type[Any] = GetMessageClass(_pool.FindMessageTypeByName(message.full_name))
    return found


@cache
def _add(file: FileDescriptor) -> None:
    for dependency in file.dependencies:
        _add(dependency)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    proto.ClearField("service")
    for message in proto.message_type:
        _of_bytes(message, proto.package)
    _pool.Add(proto)


def _of_bytes(message: DescriptorProto, scope: str) -> None:
    name = f"{scope}.{message.name}"
    for nested in message.nested_type:
        _of_bytes(nested, name)
    for field in message.field:
        is_nesting = name == AnyValue.DESCRIPTOR.full_name and field.type == FieldDescriptorProto.TYPE_MESSAGE
        if is_nesting or field.type == FieldDescriptorProto.TYPE_STRING:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")


ARRAY = of_bytes(ArrayValue)
MAP = of_bytes(KeyValueList)
