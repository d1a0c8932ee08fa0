"""A request of ClickHouse's HTTP interface, taken apart: what to run, on which data, with which settings.

The statement is the `query` parameter followed by the body; for `INSERT ... FORMAT X` what follows is data. Parameters
come from the URL, or from the fields of a multipart form. Settings are the parameters that mean nothing else.
"""

import email
import email.policy
import re
from collections.abc import Mapping
from dataclasses import dataclass

from collector.engine import EngineError

# Parameters of the interface itself.
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
    "http_zlib_compression_level",
    "log_comment",
    "password",
    "query",
    "query_id",
    "quota_key",
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
    rb"\bFORMAT\s+(?P<format>\w+)[ \t]*;?[ \t]*(?:\r?\n)?" % (_GAP, _NAMED, _NAMED, _COLUMNS, _SETTINGS),
    re.IGNORECASE | re.DOTALL,
)
_READ = re.compile(
    rb"%b[(\s]*(SELECT|WITH|SHOW|DESC|DESCRIBE|EXISTS|EXPLAIN|CHECK)\b" % _GAP, re.IGNORECASE | re.DOTALL
)
_FORMAT = re.compile(rb"\bFORMAT\s+(\w+)\s*(SETTINGS\s[^()]*?)?;?\s*$", re.IGNORECASE)

# In this process the engine would read and write files for anyone who asks; grants do not cover these ways to ask.
_FILES = re.compile(
    rb"\b(?:outfile|infile)\b|\bfile[`\"]?\s*(?:\(|/\*|--|#)|\\x[0-9a-f]{2}[^`\"\s]{0,8}[`\"]\s*(?:\(|/\*|--|#)",
    re.IGNORECASE,
)
FILES_REFUSED = (
    "files of this machine are out of reach here; to search for text that looks like it, pass the text as a parameter"
)
DEFAULT_DATABASE = "otel"
ACCESS_DENIED, BAD_ARGUMENTS, NOT_IMPLEMENTED = 497, 36, 48
MAX_STATEMENT_SEARCH = 1 << 18
"""An INSERT's head is looked for in so many bytes: the data behind it may be large."""


@dataclass(frozen=True)
class Insert:
    """`INSERT INTO ... FORMAT`: `into` up to the columns, `settings` as written or empty, and the data."""

    into: str
    settings: str
    input_format: str
    data: bytes


@dataclass(frozen=True)
class SqlRequest:
    """`insert` is set when the statement carries data; `sql` is the whole statement otherwise.

    `output_format` is what the answer is in; `reads`: it gives a result and changes nothing. `session` None: none.
    """

    sql: bytes
    insert: Insert | None
    output_format: str
    database: str
    settings: Mapping[str, str]
    params: Mapping[str, str]
    session: str | None
    session_timeout_s: float
    session_must_exist: bool
    query_id: str | None
    compress_answer: bool

    @property
    def reads(self) -> bool:
        """Whether it gives a result; statements that only change something have none."""
        return self.insert is None and _READ.match(self.sql) is not None

    def describe(self) -> bytes:
        """For one that reads: a statement whose JSONCompact answer tells the columns of the result."""
        found = _FORMAT.search(self.sql)
        statement = self.sql[: found.start()] if found else self.sql.rstrip().rstrip(b";")
        keyword = _READ.match(self.sql)
        if keyword is not None and keyword[1].upper() in (b"SELECT", b"WITH"):
            return b"DESCRIBE TABLE (" + statement + b"\n) FORMAT JSONCompact"
        return statement + b"\nFORMAT JSONCompact"


def parse(parameters: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> SqlRequest:
    """Take the request apart; `body` is decompressed. Raises EngineError for what ClickHouse would refuse too."""
    parameters = dict(parameters)
    if headers.get("Content-Type", "").startswith("multipart/form-data"):
        parameters |= _form(headers["Content-Type"], body)
        body = b""
    if "1" in (parameters.get("compress"), parameters.get("decompress")):
        raise error(NOT_IMPLEMENTED, "compress=1 is ClickHouse's own block format: use Content-Encoding instead")
    settings = {
        name: value for name, value in parameters.items() if name not in _RESERVED and not name.startswith("param_")
    }
    for name in settings:
        if not _NAME.fullmatch(name):
            raise error(BAD_ARGUMENTS, f"{name!r} is not the name of a setting")
    query = parameters.get("query", "").encode()
    try:
        insert = _insert(query, body)
    except UnicodeDecodeError as cause:
        raise error(BAD_ARGUMENTS, "the statement is not UTF-8") from cause
    if insert is not None:
        sql = f"{insert.into} {insert.settings}".encode()
    else:
        sql = b"\n".join(part for part in (query, body) if part)
    if _FILES.search(sql):
        raise error(ACCESS_DENIED, FILES_REFUSED)
    named = _FORMAT.search(sql)
    default = parameters.get("default_format") or headers.get("X-ClickHouse-Format") or "TabSeparated"
    return SqlRequest(
        sql=sql,
        insert=insert,
        output_format=named[1].decode() if named else default,
        database=parameters.get("database") or headers.get("X-ClickHouse-Database") or DEFAULT_DATABASE,
        settings=settings,
        params={name.removeprefix("param_"): value for name, value in parameters.items() if name.startswith("param_")},
        session=parameters.get("session_id") or None,
        session_timeout_s=_seconds(parameters.get("session_timeout")),
        session_must_exist=parameters.get("session_check") == "1",
        query_id=parameters.get("query_id") or None,
        compress_answer=parameters.get("enable_http_compression") == "1",
    )


def error(code: int, message: str) -> EngineError:
    """An error of our own that reads like one of ClickHouse's."""
    return EngineError(f"Code: {code}. DB::Exception: {message}")


def _insert(query: bytes, body: bytes) -> Insert | None:
    """The parts of an insert with data. The statement may end in the parameter or in the body."""
    head = query if query else body[:MAX_STATEMENT_SEARCH]
    found = _INSERT.match(head)
    if found is None:
        return None
    rest = head[found.end() :]
    data = rest + (body if query else body[len(head) :])
    return Insert(found["into"].decode(), found["settings"].decode(), found["format"].decode(), data)


def _form(content_type: str, body: bytes) -> dict[str, str]:
    message = email.message_from_bytes(
        b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body, policy=email.policy.HTTP
    )
    fields: dict[str, str] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        if part.get_filename() is not None:
            raise error(NOT_IMPLEMENTED, "external tables cannot be sent to this port: insert into a temporary table")
        if isinstance(name, str) and isinstance(payload, bytes):
            fields[name] = payload.decode()
    return fields


def _seconds(text: str | None) -> float:
    try:
        return min(float(text or 60), 3600.0)
    except ValueError as cause:
        raise error(BAD_ARGUMENTS, f"session_timeout is {text!r}, not a number of seconds") from cause
