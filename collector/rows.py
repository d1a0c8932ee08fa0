"""Cuts an OTLP request into records: SpanRow, LogRow and MetricRow of otlp.proto, each behind its length.

Invariant: a record's bytes are copied, never decoded, and every row has the whole of its resource and scope, so that
rows can be joined, split and stored in any way. The engine decodes them. Field numbers of a row:

    resource = 1    the record = 2    scope = 3    resource_schema_url = 4    scope_schema_url = 5    ingest_id = 6

Resource and record have these numbers in OTLP already, so they are taken with their tags.
"""

import struct
from collections.abc import Iterator, Sequence

_ID = struct.Struct("<BQ")
_ID_TAG = 6 << 3 | 1
_SHARED, _MANY, _SCHEMA_URL = 1 << 3 | 2, 2 << 3 | 2, 3 << 3 | 2
"""Tags in ResourceSpans (resource, scope_spans, schema_url), and in ScopeSpans (scope, spans, schema_url)."""
_SCOPE_OF_ROW, _RESOURCE_URL_OF_ROW, _SCOPE_URL_OF_ROW = b"\x1a", b"\x22", b"\x2a"
_REQUEST = 1 << 3 | 2
_PARTS = 4
"""Of which a row is joined."""

CHUNK_BYTES = 1 << 20
"""Joining holds up all other threads, and what fits a processor's cache is joined in half the time."""
Parts = list[bytes | memoryview]
Field = tuple[int, int, int, int]
"""Its tag; where it begins, its content begins, and it ends."""


class Rows:
    """The rows of requests that are known to be well formed, ready for the engine, in pieces of about CHUNK_BYTES.

    The ids of a request's rows count up from its number. It has no more rows than bytes. `count`: how many there were
    when it was iterated over last.
    """

    def __init__(self, requests: Sequence[bytes | memoryview], numbers: Sequence[int]) -> None:
        self.count = 0
        self._requests = requests
        self._numbers = numbers

    def __iter__(self) -> Iterator[bytes]:
        parts: Parts = []
        self.count = size = 0
        for request, number in zip(self._requests, self._numbers, strict=True):
            body, at = bytes(request), len(parts)
            for tag, _, start, end in _fields(body, 0, len(body)):
                if tag == _REQUEST:
                    _add_resource(parts, body, start, end, number - at // _PARTS)
            self.count += (len(parts) - at) // _PARTS
            size += len(body)
            if size >= CHUNK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)


def split(rows: bytes) -> list[bytes]:
    """Rows one by one."""
    found, at = [], 0
    while at < len(rows):
        size, start = _number(rows, at)
        found.append(rows[at : start + size])
        at = start + size
    return found


def _add_resource(parts: Parts, body: bytes, at: int, end: int, base: int) -> None:
    shared, scopes = b"", []
    for tag, begin, start, stop in _fields(body, at, end):
        if tag == _SHARED:
            shared += body[begin:stop]
        elif tag == _SCHEMA_URL:
            shared += _RESOURCE_URL_OF_ROW + body[begin + 1 : stop]
        elif tag == _MANY:
            scopes.append((start, stop))
    for scope in scopes:
        _add_scope(parts, body, scope, shared, base)


def _add_scope(parts: Parts, body: bytes, scope: tuple[int, int], shared: bytes, base: int) -> None:
    records = []
    for tag, begin, _, stop in _fields(body, *scope):
        if tag == _MANY:
            records.append((begin, stop))
        elif tag == _SHARED:
            shared += _SCOPE_OF_ROW + body[begin + 1 : stop]
        elif tag == _SCHEMA_URL:
            shared += _SCOPE_URL_OF_ROW + body[begin + 1 : stop]
    around, view = len(shared) + _ID.size, memoryview(body)
    number = base + len(parts) // _PARTS
    for begin, stop in records:
        parts += (_varint(stop - begin + around), shared, view[begin:stop], _ID.pack(_ID_TAG, number))
        number += 1


def _fields(body: bytes, at: int, end: int) -> Iterator[Field]:
    """The fields of the message in `body[at:end]` that have a length; no container has others."""
    while at < end:
        begin = at
        tag, at = _number(body, at)
        kind = tag & 7
        if kind == 2:
            size = body[at]  # most are read here and not in a function: there is one for each record
            at += 1
            if size > 0x7F:
                size, at = _number(body, at - 1)
            yield tag, begin, at, at + size
            at += size
        elif kind == 0:
            at = _number(body, at)[1]
        else:
            at += 8 if kind == 1 else 4


def _number(body: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    byte = body[at]
    value, shift = byte & 0x7F, 7
    while byte > 0x7F:
        at += 1
        byte = body[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at + 1


def _varint(value: int) -> bytes:
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7)) if value > 0x7F else bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
