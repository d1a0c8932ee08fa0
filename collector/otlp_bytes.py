"""OTLP's messages as the official Collector reads them: a string is whatever bytes it holds, UTF-8 or not.

Python's protobuf refuses a whole request for one string that is no UTF-8. These classes have OTLP's field numbers and
names, but every string is `bytes`; and what is inside an array or a map is `bytes` too, to be parsed level by level:
protobuf reads only a hundred messages in one another.
"""

import threading
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

IsBytes = Callable[[str, FieldDescriptorProto], bool]


class _Family:
    """OTLP's messages, whose strings are bytes, and so are other fields: `is_bytes` says which."""

    def __init__(self, is_bytes: IsBytes) -> None:
        self._is_bytes = is_bytes
        self._lock = threading.Lock()
        self._pool = DescriptorPool()
        self._added: set[str] = set()
        self._found: dict[str, type[Any]] = {}

    def message(self, like: Descriptor) -> type[Any]:
        """The class that reads the same bytes as `like`."""
        with self._lock:
            found = self._found.get(like.full_name)
            if found is None:
                self._add(like.file)
                found = self._found[like.full_name] = GetMessageClass(self._pool.FindMessageTypeByName(like.full_name))
            return found

    def _add(self, file: FileDescriptor) -> None:
        if file.name in self._added:
            return
        self._added.add(file.name)
        for dependency in file.dependencies:
            self._add(dependency)
        proto = FileDescriptorProto()
        file.CopyToProto(proto)
        proto.ClearField("service")
        for message in proto.message_type:
            self._change(message, proto.package)
        self._pool.Add(proto)

    def _change(self, message: DescriptorProto, scope: str) -> None:
        name = f"{scope}.{message.name}"
        for nested in message.nested_type:
            self._change(nested, name)
        for field in message.field:
            if field.type == FieldDescriptorProto.TYPE_STRING or self._is_bytes(name, field):
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")


def _nests(message: str, field: FieldDescriptorProto) -> bool:
    return bool(message == AnyValue.DESCRIPTOR.full_name and field.type == FieldDescriptorProto.TYPE_MESSAGE)


def _holds_records(message: str, field: FieldDescriptorProto) -> bool:
    """Whether these are the records of a ScopeSpans, ScopeLogs or ScopeMetrics."""
    return message.rpartition(".")[2].startswith("Scope") and bool(field.number == _MANY)


_MANY = 2
"""The number of the field of scopes in a resource's message, and of records in a scope's."""
_whole, _shallow = _Family(_nests), _Family(_holds_records)


def of_bytes(message: type[Message]) -> type[Any]:
    """The class that reads the same bytes as OTLP's `message`, and whose strings are bytes."""
    return _whole.message(message.DESCRIPTOR)


def well_formed(request: type[Message], body: bytes) -> tuple[bytes, int]:
    """The part of an export request whose records are well formed, and how many others there are.

    Raises DecodeError where the containers of records are malformed too.
    """
    containers = _shallow.message(request.DESCRIPTOR).FromString(body)
    of_resource = request.DESCRIPTOR.fields_by_number[1]
    of_scope = of_resource.message_type.fields_by_number[_MANY]
    records = of_scope.message_type.fields_by_number[_MANY]
    record = _whole.message(records.message_type)
    others = 0
    for resource in getattr(containers, of_resource.name):
        for scope in getattr(resource, of_scope.name):
            all_of_them = getattr(scope, records.name)
            good = [one for one in all_of_them if _reads(record, one)]
            others += len(all_of_them) - len(good)
            if len(good) < len(all_of_them):
                scope.ClearField(records.name)
                getattr(scope, records.name).extend(good)
    return bytes(containers.SerializeToString()), others


def _reads(message: type[Any], data: bytes) -> bool:
    try:
        message.FromString(data)
    except DecodeError:
        return False
    return True


ARRAY = of_bytes(ArrayValue)
MAP = of_bytes(KeyValueList)
