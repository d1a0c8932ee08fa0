"""What ClickHouse's HTTP interface answers: status codes, content types, errors, and what the engine does not write."""

import secrets
import string
import struct
from collections.abc import Mapping

import orjson

from collector.clickhouse_advice import told_once
from collector.engine import Answer, EngineError

# ClickHouse's own mapping of error codes to HTTP statuses (exceptionCodeToHTTPStatus), and one of ours: whoever asks
# when too many do already may come again, and clients do that after a 503.
_STATUS = {
    **dict.fromkeys((6, 8, 15, 25, 26, 27, 36, 37, 38, 41, 44, 53, 62, 72, 117), 400),
    **dict.fromkeys((123, 167, 168, 223, 321, 376, 427, 441, 675, 676), 400),
    **dict.fromkeys((46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511), 404),
    **dict.fromkeys((192, 193, 497, 512, 516), 403),
    48: 501,
    76: 503,
    159: 408,
    194: 401,
    202: 503,
    209: 503,
    229: 413,
    381: 411,
    439: 503,
    779: 415,
}
_CONTENT_TYPES = {
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONStrings": "application/json; charset=UTF-8",
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "XML": "application/xml; charset=UTF-8",
}
_BINARY = ("Native", "RowBinary", "Arrow", "Parquet", "ORC", "Avro", "Protobuf", "MsgPack", "BSON", "Npy", "CapnProto")
TAG_CHARACTERS = 16
MARKER = "__exception__"
MAX_ERROR_CHARACTERS = 8000
"""Of an error in the middle of an answer: clients keep the last 16 KiB and look for it there."""
HELLO = b"select displayname(), version(), revision(), timezone()"
_BLOCK_INFO, _CUSTOM_SERIALIZATION, _BUCKETS = 1, 54454, 54480


def error_status(error: EngineError) -> int:
    """The HTTP status for an error of the engine."""
    return _STATUS.get(error.code, 500)


def error_text(error: EngineError, version: str, hint: str = "") -> str:
    """The error as a server would write it, with its version and a newline."""
    text = told_once(str(error).rstrip())
    return f"{text}{': ' + hint if hint else ''} (version {version} (official build))\n"


def new_tag() -> str:
    """What marks an error in the middle of an answer, so that no data can pass for one."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(TAG_CHARACTERS))


def error_in_answer(text: str, tag: str) -> bytes:
    """An error after the beginning of an answer: the status is sent already. The length counts the newline."""
    shown = text[:MAX_ERROR_CHARACTERS].rstrip("\n").encode()
    return b"\r\n%b\r\n%b\r\n%b\n%d %b\r\n%b\r\n" % (
        MARKER.encode(),
        tag.encode(),
        shown,
        len(shown) + 1,
        tag.encode(),
        MARKER.encode(),
    )


def content_type(output_format: str) -> str:
    """The Content-Type of a result."""
    if output_format in _CONTENT_TYPES:
        return _CONTENT_TYPES[output_format]
    if output_format.startswith("JSON"):
        return "application/x-ndjson; charset=UTF-8"
    return "application/octet-stream" if output_format.startswith(_BINARY) else "text/plain; charset=UTF-8"


def summary(answer: Answer) -> str:
    """The value of X-ClickHouse-Summary. Numbers are strings, as ClickHouse writes them."""
    return as_summary(
        {
            "read_rows": answer.read_rows,
            "read_bytes": answer.read_bytes,
            "written_rows": answer.written_rows,
            "written_bytes": answer.written_bytes,
            "elapsed_ns": int(answer.elapsed_s * 1e9),
        }
    )


def as_summary(numbers: Mapping[str, int]) -> str:
    """The numbers of an answer, or of a part of it, as ClickHouse writes them."""
    names = ("read_rows", "read_bytes", "written_rows", "written_bytes", "total_rows_to_read", "elapsed_ns")
    return orjson.dumps({name: str(numbers.get(name, 0)) for name in names}).decode()


def empty_native(description: bytes) -> bytes:
    """A Native block without rows, from the JSONCompact answer to `SqlRequest.describe`.

    The embedded engine sends no block at all for an empty result, and clients learn the column names from it.
    """
    answer = orjson.loads(description)
    described = [column["name"] for column in answer["meta"]][:2] == ["name", "type"] and answer["data"]
    columns = (
        [(row[0], row[1]) for row in answer["data"]]
        if described
        else [(column["name"], column["type"]) for column in answer["meta"]]
    )
    block = _varint(len(columns)) + _varint(0)
    for name, kind in columns:
        block += _text(name) + _text(kind)
    return block


def is_hello(sql: bytes) -> bool:
    """Whether a statement is the first that clickhouse-go sends."""
    return sql.strip().lower() == HELLO


def hello(version: str, timezone: str, protocol: int) -> bytes:
    """The answer to clickhouse-go's first statement, as a Native block of the client's protocol version.

    The embedded engine always writes blocks of revision 0 and says that its revision is that of a server. The client
    reads this one block with its own version, and everything after it with the revision that it finds here: 0.
    """
    block = b""
    if protocol >= _BLOCK_INFO:
        block += b"\x01\x00\x02\xff\xff\xff\xff" + (b"\x03\x00" if protocol >= _BUCKETS else b"") + b"\x00"
    block += _varint(4) + _varint(1)
    for name, kind, data in (
        ("displayName()", "String", _text("tracegrad")),
        ("version()", "String", _text(version)),
        ("revision()", "UInt32", struct.pack("<I", 0)),
        ("timezone()", "String", _text(timezone)),
    ):
        block += _text(name) + _text(kind) + (b"\x00" if protocol >= _CUSTOM_SERIALIZATION else b"") + data
    return block


def _text(value: str) -> bytes:
    data = value.encode()
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
