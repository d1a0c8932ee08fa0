"""Cuts OTLP requests into records: SpanRow, LogRow and MetricRow of otlp.proto, each behind its length.

Invariant: a record's bytes are copied, never decoded, and every row has the whole of its resource and scope, so that
rows can be joined, split and stored in any way. The engine decodes them. Field numbers of a row:

    resource = 1    the record = 2    scope = 3    resource_schema_url = 4    scope_schema_url = 5    ingest_id = 6

Resource and record have these numbers in OTLP already, so they are taken with their tags. Each row of a request has an
id: they count up from the request's number, and there are no more of them than the request has bytes.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_ID = struct.Struct("<BQ")
_ID_TAG = 6 << 3 | 1
_SHARED, _MANY, _SCHEMA_URL = 1 << 3 | 2, 2 << 3 | 2, 3 << 3 | 2
"""Tags in ResourceSpans (resource, scope_spans, schema_url), and in ScopeSpans (scope, spans, schema_url)."""
_SCOPE_OF_ROW, _RESOURCE_URL_OF_ROW, _SCOPE_URL_OF_ROW = b"\x1a", b"\x22", b"\x2a"
_REQUEST = 1 << 3 | 2
PIECE_BYTES, PIECE_ROWS = 1 << 20, 4096
"""Joining holds up all other threads, and what fits a processor's cache is joined in half the time."""

Field = tuple[int, int, int, int]
"""Its tag; where it begins, its content begins, and it ends."""


class OddError(Exception):
    """The request is one that protobuf reads and this does not: it is to be decoded and written anew."""


@dataclass(frozen=True)
class Piece:
    """Rows that are joined, ready for the engine. Their ids lie between the first's and the last's."""

    data: bytes
    first_id: int
    last_id: int
    count: int

    def halves(self) -> "list[Piece]":
        """The same rows, of which there are two or more, in two pieces."""
        rows = _split(self.data)
        middle = len(rows) // 2
        return [_piece(rows[:middle]), _piece(rows[middle:])]


def pieces(requests: Iterable[bytes | memoryview], numbers: Sequence[int]) -> Iterator[Piece]:
    """All rows of requests that are known to be well formed, in pieces of about PIECE_BYTES. Raises OddError."""
    joining = _Joining()
    for request, number in zip(requests, numbers, strict=True):
        body = bytes(request)
        joining.next_id = number
        for tag, _, start, end in _fields(body, 0, len(body)):
            if tag == _REQUEST:
                yield from _of_resource(joining, body, start, end)
    if joining.parts:
        yield joining.piece()


class _Joining:
    """Rows that are not a piece yet."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.size = self.count = self.first_id = self.next_id = 0

    def piece(self) -> Piece:
        made = Piece(b"".join(self.parts), self.first_id, self.next_id - 1, self.count)
        self.parts, self.size, self.count = [], 0, 0
        return made


def _of_resource(joining: _Joining, body: bytes, at: int, end: int) -> Iterator[Piece]:
    resource, url, scopes = b"", b"", []
    for tag, begin, start, stop in _fields(body, at, end):
        if tag == _SHARED:
            _once(resource)
            resource = body[begin:stop]
        elif tag == _SCHEMA_URL:
            _once(url)
            url = _RESOURCE_URL_OF_ROW + body[begin + 1 : stop]
        elif tag == _MANY:
            scopes.append((start, stop))
    for start, stop in scopes:
        yield from _of_scope(joining, body, start, stop, resource + url)


def _of_scope(joining: _Joining, body: bytes, at: int, end: int, shared: bytes) -> Iterator[Piece]:
    scope, url, records = b"", b"", []
    for tag, begin, _, stop in _fields(body, at, end):
        if tag == _MANY:
            records.append((begin, stop))
        elif tag == _SHARED:
            _once(scope)
            scope = _SCOPE_OF_ROW + body[begin + 1 : stop]
        elif tag == _SCHEMA_URL:
            _once(url)
            url = _SCOPE_URL_OF_ROW + body[begin + 1 : stop]
    shared += scope + url
    around, view = len(shared) + _ID.size, memoryview(body)
    for begin, stop in records:
        if not joining.count:
            joining.first_id = joining.next_id
        size = stop - begin + around
        joining.parts += (_varint(size), shared, view[begin:stop], _ID.pack(_ID_TAG, joining.next_id))
        joining.next_id += 1
        joining.count += 1
        joining.size += size
        if joining.size >= PIECE_BYTES or joining.count >= PIECE_ROWS:
            yield joining.piece()


def _once(before: bytes) -> None:
    if before:
        raise OddError("a field that is there twice, which protobuf merges")


def _fields(body: bytes, at: int, end: int) -> Iterator[Field]:
    """The fields of the message in `body[at:end]`. Raises OddError for one that no writer of OTLP writes."""
    while at < end:
        begin = at
        tag = body[at]
        at += 1
        if tag & 7 != 2 or tag > 0x7F:
            raise OddError("a field of another kind, or that is not known")
        size = body[at]  # most are read here and not in a function: there is one for each record
        at += 1
        if size > 0x7F:
            size, at = _number(body, at - 1)
        yield tag, begin, at, at + size
        at += size


def _split(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size, start = _number(data, at)
        found.append(data[at : start + size])
        at = start + size
    return found


def _piece(rows: list[bytes]) -> Piece:
    ids = [_ID.unpack(row[-_ID.size :])[1] for row in (rows[0], rows[-1])]
    return Piece(b"".join(rows), ids[0], ids[1], len(rows))


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
