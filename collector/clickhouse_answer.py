"""What ClickHouse's HTTP interface answers: status codes of errors, content types, and results without rows."""

import orjson

from collector.engine import Answer, EngineError

# ClickHouse's own mapping of error codes to HTTP statuses, as far as the embedded engine can give them.
_STATUS = {
    **dict.fromkeys((6, 26, 27, 36, 38, 41, 43, 53, 62, 72, 117, 130, 131, 386, 444, 457, 469, 349, 158, 396), 400),
    **dict.fromkeys((16, 46, 47, 50, 56, 60, 63, 73, 80, 81, 115, 372), 404),
    **dict.fromkeys((164, 192, 193, 497, 516), 403),
    159: 408,
    202: 503,
    241: 500,
    252: 503,
    48: 501,
}
_CONTENT_TYPES = {
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
}
_BINARY = ("Native", "RowBinary", "Arrow", "Parquet", "ORC", "Avro", "Protobuf", "MsgPack", "BSON", "Npy")


def error_status(error: EngineError) -> int:
    """The HTTP status for an error of the engine."""
    return _STATUS.get(error.code, 500)


def content_type(output_format: str) -> str:
    """The Content-Type of a result."""
    if output_format in _CONTENT_TYPES:
        return _CONTENT_TYPES[output_format]
    if output_format.startswith("JSON"):
        return "application/x-ndjson; charset=UTF-8"
    return "application/octet-stream" if output_format.startswith(_BINARY) else "text/plain; charset=UTF-8"


def summary(answer: Answer) -> str:
    """The value of X-ClickHouse-Summary. Numbers are strings, as ClickHouse writes them."""
    numbers = {
        "read_rows": answer.read_rows,
        "read_bytes": answer.read_bytes,
        "written_rows": answer.written_rows,
        "written_bytes": answer.written_bytes,
        "elapsed_ns": int(answer.elapsed_s * 1e9),
    }
    return orjson.dumps({name: str(number) for name, number in numbers.items()}).decode()


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
