"""A request of ClickHouse's HTTP interface, taken apart: what to run, on which data, with which settings.

The statement is the `query` parameter followed by the body; for `INSERT ... FORMAT X` what follows is data. Parameters
come from the URL, or from the fields of a multipart form. Settings are the parameters that mean nothing else.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from collector.clickhouse_body import Body
from collector.clickhouse_statement import Statement, is_list_of_columns, read_statement, tokens_of
from collector.engine import EngineError

# Parameters of the interface itself, or of clients that a server takes them from.
_RESERVED = {
    "buffer_size",
    "cancel_http_readonly_queries_on_client_close",
    "client_protocol_version",
    "close_session",
    "compress",
    "database",
    "decompress",
    "default_format",
    "enable_http_compression",
    "http_headers_progress_interval_ms",
    "http_native_compression_disable_checksumming_on_decompress",
    "http_response_buffer_size",
    "http_wait_end_of_query",
    "http_write_exception_in_output_format",
    "http_zlib_compression_level",
    "log_comment",
    "password",
    "query",
    "query_id",
    "quota_key",
    "replace_running_query",
    "role",
    "send_progress_in_http_headers",
    "session_check",
    "session_id",
    "session_timeout",
    "stacktrace",
    "user",
    "wait_end_of_query",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Space and comments. Atomic: a statement of many comments must not be tried in every way to split them.
_GAP = rb"(?>\s|--[^\n]*(?:\n|$)|#[ !][^\n]*(?:\n|$)|/\*.*?\*/)*+"
_NAMED = rb"(?:`[^`]*`|\"[^\"]*\"|\w+)"
_COLUMNS = rb"\((?:[^()`]|`[^`]*`|\([^()]*\))*\)"
_SETTINGS = rb"SETTINGS\s(?:[^;']|'(?:[^'\\]|\\.)*')*?"
_INSERT = re.compile(
    rb"(?P<into>%bINSERT\s+INTO\s+(?:TABLE\s+)?%b(?:\s*\.\s*%b)?\s*(?:%b\s*)?)(?P<settings>(?:%b)?)"
    rb"\b(?:FORMAT\s+(?P<format>\w+)[ \t]*;?[ \t]*(?:\r?\n)?|(?P<values>VALUES\b))"
    % (_GAP, _NAMED, _NAMED, _COLUMNS, _SETTINGS),
    re.IGNORECASE | re.DOTALL,
)
DEFAULT_DATABASE = "otel"
BAD_ARGUMENTS, SYNTAX_ERROR = 36, 62
MAX_STATEMENT_BYTES = 1 << 20
"""An INSERT's head is looked for in so many bytes: the data behind it may be large. Other statements are no longer."""
MAX_HELD_BYTES = 16 << 20
"""The most of an answer that `buffer_size` can keep back in memory."""
DEFAULT_HELD_BYTES = 1 << 20


@dataclass(frozen=True)
class Insert:
    """`INSERT INTO ... FORMAT`: `into` up to the columns, `settings` as written or empty.

    The data is what of `inline`, and then of the request's body from `data_start` on, follows the statement.
    """

    into: str
    settings: str
    input_format: str
    inline: bytes
    data_start: int


@dataclass(frozen=True)
class External:
    """A table that comes with a request and is there for its statement only. Raises nothing: it was checked."""

    name: str
    columns: str
    input_format: str


@dataclass(frozen=True)
class SqlRequest:
    """`insert` is set where data comes with the statement, which then ends before it. `session` None: none.

    `held_bytes`: of the answer, before its status is sent; None: all of it (`wait_end_of_query=1`).
    """

    statement: Statement
    insert: Insert | None
    output_format: str
    database: str
    settings: Mapping[str, str]
    params: Mapping[str, str]
    session: str | None
    session_timeout_s: float
    session_must_exist: bool
    session_ends: bool
    query_id: str | None
    replaces: bool
    held_bytes: int | None
    protocol_version: int

    @property
    def reads(self) -> bool:
        """Whether it gives a result; statements that only change something have none."""
        return self.insert is None and self.statement.reads

    def describe(self) -> bytes:
        """For one that reads: a statement whose JSONCompact answer tells the columns of the result."""
        asked = self.statement.asked
        if self.statement.verb in ("SELECT", "WITH", "FROM"):
            return b"DESCRIBE TABLE (" + asked + b"\n) FORMAT JSONCompact"
        return asked + b"\nFORMAT JSONCompact"


def parse(parameters: Mapping[str, str], headers: Mapping[str, str], body: Body) -> SqlRequest:
    """Take the request apart; `body` is decompressed. Raises EngineError for what ClickHouse would refuse too."""
    settings = {
        name: value for name, value in parameters.items() if name not in _RESERVED and not name.startswith("param_")
    }
    for name in settings:
        if not _NAME.fullmatch(name):
            raise error(BAD_ARGUMENTS, f"{name!r} is not the name of a setting")
    query = parameters.get("query", "").encode()
    insert = _insert(query, body)
    if insert is not None:
        statement = read_statement(f"{insert.into} {insert.settings}".encode())  # for what it may not name
    else:
        if len(query) + body.size > MAX_STATEMENT_BYTES:
            raise error(SYNTAX_ERROR, f"Max query size exceeded: a statement has at most {MAX_STATEMENT_BYTES} bytes")
        statement = read_statement(b"\n".join(part for part in (query, body.read()) if part))
        if statement.verb == "INSERT" and _loses_data(statement.sql):
            raise error(SYNTAX_ERROR, "this form of INSERT is not known here: INSERT INTO table (columns) FORMAT ...")
    default = parameters.get("default_format") or headers.get("X-ClickHouse-Format") or "TabSeparated"
    if not _NAME.fullmatch(default):
        raise error(BAD_ARGUMENTS, f"{default!r} is not the name of a format")
    return SqlRequest(
        statement=statement,
        insert=insert,
        output_format=statement.output_format or default,
        database=parameters.get("database") or headers.get("X-ClickHouse-Database") or DEFAULT_DATABASE,
        settings=settings,
        params={name.removeprefix("param_"): value for name, value in parameters.items() if name.startswith("param_")},
        session=parameters.get("session_id") or None,
        session_timeout_s=_number(parameters, "session_timeout", 60, 3600),
        session_must_exist=parameters.get("session_check") == "1",
        session_ends=parameters.get("close_session") == "1",
        query_id=parameters.get("query_id") or None,
        replaces=parameters.get("replace_running_query") == "1",
        held_bytes=_held_bytes(parameters),
        protocol_version=_number(parameters, "client_protocol_version", 0, 1 << 31),
    )


def external(name: str, parameters: dict[str, str]) -> External:
    """The table that a file of a multipart form is; takes its parameters out. Raises EngineError."""
    structure = parameters.pop(f"{name}_structure", None)
    types = parameters.pop(f"{name}_types", None)
    input_format = parameters.pop(f"{name}_format", "TabSeparated")
    if structure is None and types is not None:
        structure = ", ".join(f"_{number} {kind}" for number, kind in enumerate(_split(types), 1))
    if structure is None:
        raise error(BAD_ARGUMENTS, f"external table {name}: give its columns as {name}_structure or {name}_types")
    if not _NAME.fullmatch(name) or not _NAME.fullmatch(input_format):
        raise error(BAD_ARGUMENTS, f"external table {name!r}: its name or format is not a name")
    if not is_list_of_columns(structure.encode()):
        raise error(BAD_ARGUMENTS, f"external table {name}: {structure!r} is not a list of columns")
    return External(name, structure, input_format)


def error(code: int, message: str) -> EngineError:
    """An error of our own that reads like one of ClickHouse's."""
    return EngineError(f"Code: {code}. DB::Exception: {message}")


def _insert(query: bytes, body: Body) -> Insert | None:
    """The parts of an insert with data. The statement may end in the parameter or in the body."""
    head = query or body.read(MAX_STATEMENT_BYTES)
    found = _INSERT.match(head)
    # Values of a short statement are the engine's to parse, as they may hold parameters and expressions.
    if found is None or (found["values"] is not None and len(query) + body.size < MAX_STATEMENT_BYTES):
        return None
    try:
        into, settings = found["into"].decode(), found["settings"].decode()
        input_format = (found["format"] or b"Values").decode()
    except UnicodeDecodeError as cause:
        raise error(BAD_ARGUMENTS, "the statement is not UTF-8") from cause
    inline, start = (query[found.end() :], 0) if query else (b"", found.end())
    return Insert(into, settings, input_format, inline, start)


def _loses_data(sql: bytes) -> bool:
    """Whether it is an INSERT with data that was not recognised: the engine would silently insert nothing."""
    words = [token for token in tokens_of(sql) if token.kind == "word"]
    return any(token.is_word("FORMAT") for token in words) and not any(
        token.is_word("SELECT", "VALUES") for token in words
    )


def _held_bytes(parameters: Mapping[str, str]) -> int | None:
    if "1" in (parameters.get("wait_end_of_query"), parameters.get("http_wait_end_of_query")):
        return None
    name = "buffer_size" if "buffer_size" in parameters else "http_response_buffer_size"
    return _number(parameters, name, DEFAULT_HELD_BYTES, MAX_HELD_BYTES)


def _number(parameters: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = parameters.get(name) or str(default)
    if not (text.isascii() and text.isdecimal()):
        raise error(BAD_ARGUMENTS, f"{name} is {text!r}, not a whole number")
    return min(int(text), most)


def _split(types: str) -> list[str]:
    """Types at the commas that are in no brackets."""
    parts, depth = [""], 0
    for character in types:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
