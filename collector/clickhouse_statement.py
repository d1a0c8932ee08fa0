"""A SQL statement, as far as the interface must understand it: its verb, where its FORMAT is, and what it may not name.

It is split into tokens as ClickHouse's own lexer does, so that text in strings and comments is never taken for more.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from collector.engine import EngineError

SYNTAX_ERROR, ACCESS_DENIED = 62, 497
# Every branch is atomic: nothing is tried in two ways. What `open` begins is ended by a search for its other end.
_TOKEN = re.compile(
    rb"""
    (?P<gap>(?>(?:\s|\xc2\xa0)+|--[^\n]*+|\#[\ !][^\n]*+))
    |(?P<string>(?>'(?:[^'\\]|\\.)*+'))
    |(?P<quoted>(?>"(?:[^"\\]|\\.)*+"|`(?:[^`\\]|\\.)*+`))
    |(?P<open>(?>/\*|\$\w*+\$|\xe2\x80\x98|\xe2\x80\x9c))
    |(?P<word>(?>[A-Za-z_][\w$]*+))
    |(?P<number>(?>[0-9][\w.]*+))
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# ClickHouse takes typographic quotes too.
_ENDS = {
    b"/*": (b"*/", "gap"),
    b"\xe2\x80\x98": (b"\xe2\x80\x99", "string"),
    b"\xe2\x80\x9c": (b"\xe2\x80\x9d", "quoted"),
}
_HEX = re.compile(rb"\\x([0-9a-fA-F]{2})")
_QUOTES = b'"`\xe2\x80\x9c\x9d'
READING = {"SELECT", "WITH", "FROM", "SHOW", "DESC", "DESCRIBE", "EXISTS", "EXPLAIN", "CHECK"}

# In this process the engine would read and write files for anyone who asks; grants do not cover these ways to ask, and
# a function may be named without a call: `arrayMap(file, ...)`, `* APPLY(file)`.
_UNREACHABLE = {b"file", b"infile", b"outfile"}
_FILES_REFUSED = "files of the collector's machine are out of reach here: "
_SEND_DATA = "send data as the body of INSERT INTO ... FORMAT, and keep what a SELECT answers"
_NAME_TABLE = "where `file` is a column's name, write its table's name before it"


@dataclass(frozen=True)
class Token:
    """`kind`: string, quoted, word, number or other. `depth`: of brackets around it."""

    kind: str
    start: int
    end: int
    text: bytes
    depth: int

    def is_word(self, *words: str) -> bool:
        """Whether it is one of the keywords."""
        return self.kind == "word" and self.text.upper().decode() in words


@dataclass(frozen=True)
class Statement:
    """`sql` ends before its semicolon. `output_format` None: it names none; `asked` is `sql` up to there.

    `settings`: the SETTINGS clause behind FORMAT, or nothing.
    """

    sql: bytes
    verb: str
    reads: bool
    output_format: str | None
    asked: bytes
    settings: bytes

    def into(self, path: str, default_format: str) -> bytes:
        """The same statement, with its result going to the file at `path`, which is there."""
        chosen = self.output_format or default_format
        return b"%b\nINTO OUTFILE '%b' APPEND FORMAT %b %b" % (
            self.asked,
            path.encode(),
            chosen.encode(),
            self.settings,
        )


def read_statement(sql: bytes) -> Statement:
    """Take a statement apart. Raises EngineError where there are several, or where it names files."""
    tokens = list(tokens_of(sql))
    refuse_files(tokens)
    end = len(sql)
    if stops := [index for index, token in enumerate(tokens) if token.text == b";" and token.kind == "other"]:
        if any(token.text != b";" for token in tokens[stops[0] :]):
            raise EngineError(f"Code: {SYNTAX_ERROR}. DB::Exception: Multi-statements are not allowed. (SYNTAX_ERROR)")
        end = tokens[stops[0]].start
        tokens = tokens[: stops[0]]
    first = next((token for token in tokens if token.text != b"("), None)
    verb = first.text.upper().decode(errors="replace") if first is not None and first.kind == "word" else ""
    inserts = any(
        token.is_word("INSERT") and token.depth == 0 and following.is_word("INTO")
        for token, following in itertools.pairwise(tokens)
    )
    reads = verb in READING and not (verb == "WITH" and inserts)
    found = _format(tokens)
    if found is None:
        return Statement(sql[:end], verb, reads, None, sql[:end], b"")
    name = tokens[found + 1]
    return Statement(
        sql[:end], verb, reads, name.text.decode(), sql[: tokens[found].start], sql[name.end : end].strip()
    )


def renamed(sql: bytes, word: str, replacement: bytes) -> bytes:
    """`sql` with another expression in place of an identifier."""
    out, at = bytearray(), 0
    for token in tokens_of(sql):
        if token.kind in ("word", "quoted") and _name(token).lower() == word.encode():
            out += sql[at : token.start] + replacement
            at = token.end
    return bytes(out + sql[at:])


def is_list_of_columns(text: bytes) -> bool:
    """Whether `text` can stand between brackets without leaving them. Raises EngineError where it names files."""
    tokens = list(tokens_of(text))
    refuse_files(tokens)
    return bool(tokens) and all(token.depth >= 0 and token.text != b";" for token in tokens)


def refuse_files(tokens: list[Token]) -> None:
    """Raise EngineError where an identifier could be a way to files, unless it is a column of a named table."""
    for index, token in enumerate(tokens):
        if token.kind not in ("word", "quoted") or _name(token).lower() not in _UNREACHABLE:
            continue
        before = tokens[index - 1] if index else None
        if before is None or not (before.text == b"." or before.is_word("AS")):
            called = any(following.text == b"(" for following in tokens[index + 1 : index + 2])
            advice = _SEND_DATA if called or _name(token).lower() != b"file" else _NAME_TABLE
            raise EngineError(f"Code: {ACCESS_DENIED}. DB::Exception: {_FILES_REFUSED}{advice}. (ACCESS_DENIED)")


def _format(tokens: list[Token]) -> int | None:
    """Where the FORMAT clause of the whole statement begins: nothing but SETTINGS may follow it."""
    for index in range(len(tokens) - 2, -1, -1):
        if tokens[index].depth == 0 and tokens[index].is_word("FORMAT"):
            name, rest = tokens[index + 1], tokens[index + 2 :]
            if name.kind == "word" and (not rest or rest[0].is_word("SETTINGS")):
                return index
            return None
    return None


def _name(token: Token) -> bytes:
    """What an identifier names, without quotes and escapes."""
    if token.kind == "word":
        return token.text
    plain = _HEX.sub(lambda found: bytes((int(found[1], 16),)), token.text.strip(_QUOTES))
    return plain.replace(b"\\", b"")


def tokens_of(sql: bytes) -> Iterator[Token]:
    """All but spaces and comments."""
    at = depth = 0
    endless: set[bytes] = set()
    while (found := _TOKEN.match(sql, at)) is not None:
        kind, start, at = found.lastgroup or "", at, found.end()
        if kind == "open":
            begun = found[0]
            end, kind = _ENDS.get(begun, (begun, "string"))
            if (close := -1 if begun in endless else sql.find(end, at)) >= 0:
                at = close + len(end)
            else:  # no such end from here on: each of them is looked for once
                endless.add(begun)
                kind, at = "other", start + 1
        if kind == "gap":
            continue
        text = sql[start:at]
        if text in (b")", b"]", b"}"):
            depth -= 1
        yield Token(kind, start, at, text, depth)
        if text in (b"(", b"[", b"{"):
            depth += 1
