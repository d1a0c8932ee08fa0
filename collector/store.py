"""Where the collector's rows live: chDB in this process or a ClickHouse server. What the rest sees of either.

Invariant: `insert` and `execute` either return when the store has it, or raise StoreError, whose `retryable` is False
only where the data itself is to blame, so that no fault of a store or of its set-up ever costs a row.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tracegrad.errors import TracegradError

if TYPE_CHECKING:
    from collector.signals import Signal

UNKNOWN_CODE = 1002  # ClickHouse's UNKNOWN_EXCEPTION
_CODE = re.compile(r"Code: (\d+)\. ")

# What ClickHouse says of bytes that it cannot read and of rows that it may not keep: it will say the same next time.
_DATA_IS_WRONG = {
    6: "CANNOT_PARSE_TEXT",
    25: "CANNOT_PARSE_ESCAPE_SEQUENCE",
    26: "CANNOT_PARSE_QUOTED_STRING",
    27: "CANNOT_PARSE_INPUT_ASSERTION_FAILED",
    32: "ATTEMPT_TO_READ_AFTER_EOF",
    33: "CANNOT_READ_ALL_DATA",
    36: "BAD_ARGUMENTS",  # of a message: two members of a oneof
    38: "CANNOT_PARSE_DATE",
    41: "CANNOT_PARSE_DATETIME",
    69: "ARGUMENT_OUT_OF_BOUND",
    70: "CANNOT_CONVERT_TYPE",
    72: "CANNOT_PARSE_NUMBER",
    117: "INCORRECT_DATA",
    128: "TOO_LARGE_ARRAY_SIZE",
    130: "CANNOT_READ_ARRAY_FROM_TEXT",
    131: "TOO_LARGE_STRING_SIZE",
    190: "SIZES_OF_ARRAYS_DONT_MATCH",
    306: "TOO_DEEP_RECURSION",
    321: "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
    349: "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN",
    395: "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO",
    407: "DECIMAL_OVERFLOW",
    436: "PROTOBUF_BAD_CAST",
    444: "UNKNOWN_PROTOBUF_FORMAT",
    469: "VIOLATED_CONSTRAINT",
}


class StoreError(TracegradError):
    """A store did not do it. `code` is ClickHouse's error code; 0: there is none, as when the network failed."""

    def __init__(self, code: int, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


@dataclass(frozen=True)
class Insertion:
    """How bytes become rows: `INSERT INTO table SETTINGS settings FORMAT input_format`, with the bytes behind it."""

    table: str
    input_format: str
    settings: Mapping[str, str]

    def settings_clause(self) -> str:
        """The settings as SQL."""
        return "SETTINGS " + ", ".join(f"{name} = {quote(value)}" for name, value in self.settings.items())


@dataclass(frozen=True)
class Answer:
    """What a statement gave: bytes in the format asked for, and what it cost."""

    body: bytes = b""
    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    elapsed_s: float = 0.0


class Store(Protocol):
    """A store with our schema. Every method blocks and may be called in any thread; all raise StoreError."""

    @property
    def name(self) -> str:
        """For logs and messages: a path or an address, never with a password."""
        ...

    def insert(self, signal: "Signal", rows: Iterable[bytes], query_id: str) -> None:
        """Store `rows`, cut into pieces in any way, as `signal` says; none is no error.

        One that was cut short may still be at work: ask `is_running`.
        """
        ...

    def query(self, sql: str, output_format: str = "TabSeparated", params: Mapping[str, str] | None = None) -> Answer:
        """Run one statement that reads. `params` are the plain values of `{name:Type}`."""
        ...

    def execute(self, sql: str) -> None:
        """Run one statement that has no result."""
        ...

    def delete(self, table: str, where: str) -> int:
        """Take rows out, and say how many there were. `where` is a WHERE clause. Done when it returns."""
        ...

    def is_running(self, query_id: str) -> bool:
        """Whether an insert with this id may still be at work in the store, and so store its rows yet."""
        ...

    def close(self) -> None:
        """Let go of it. Nothing may be at work."""
        ...


def error_code(message: str) -> int:
    """The code in one of ClickHouse's error messages."""
    found = _CODE.search(message)
    return int(found[1]) if found else UNKNOWN_CODE


def is_retryable(code: int) -> bool:
    """Whether an insert that failed with this code of ClickHouse's may succeed another time."""
    return code not in _DATA_IS_WRONG


def quote(value: str) -> str:
    """A SQL string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
