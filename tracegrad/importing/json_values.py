"""The JSON values of a file, one after another: lines, the elements of one array, or one value.

No more of the file is in memory than one value and a piece: what fits a line or an element is bounded by that.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from tracegrad.errors import InputError

PIECE = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
_BREAKS_OFF = 16
"""An error so close to the end of what was read may go away with more: half a literal, number or escape."""


@dataclass(frozen=True)
class Place:
    """Where in which file a value begins."""

    file: Path
    line: int
    number: int
    """The how manyth value it is, from 1."""

    def error(self, what: str) -> InputError:
        """What is wrong here."""
        return InputError(f"{self.file}, line {self.line} (value {self.number}): {what}")


def json_values(file: Path) -> Iterator[tuple[Place, Any]]:
    """Every value of the file, and its place. Raises InputError: also where there is none."""
    found = False
    try:
        with file.open("rb") as opened:
            for place, value in _by_line(file, opened):
                found = True
                yield place, value
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    if not found:
        raise InputError(f"{file} is empty: give a file of traces, see tracegrad import --help")


def _by_line(file: Path, opened: IO[bytes]) -> Iterator[tuple[Place, Any]]:
    """JSON lines, as long as the first line is a value by itself; all else as one text."""
    number, line_number = 0, 0
    while line := opened.readline():
        line_number += 1
        text = line.strip().removeprefix(b"\xef\xbb\xbf")
        if not text:
            continue
        place = Place(file, line_number, number + 1)
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            if number == 0:
                opened.seek(0)
                yield from _Text(file, opened).values()
                return
            value = _by_the_slower_reader(text, place, error)
        number += 1
        if number == 1 and isinstance(value, list):  # the whole of an array on one line
            yield from ((Place(file, line_number, index), item) for index, item in enumerate(value, 1))
            number = len(value)
            continue
        yield place, value


def _by_the_slower_reader(text: bytes, place: Place, error: Exception) -> Any:
    """What the fast reader refuses: half a surrogate pair, NaN."""
    try:
        return json.loads(text)
    except ValueError:
        raise place.error(f"no JSON: {error}") from error


class _Text:
    """Values in a text that has no line for each. Raises InputError."""

    def __init__(self, file: Path, opened: IO[bytes]) -> None:
        self._file = file
        self._opened = opened
        self._decoder = json.JSONDecoder()
        self._tail = b""
        self._text = ""
        self._at = 0
        self._lines = 1
        self._ended = False
        self._number = 0

    def values(self) -> Iterator[tuple[Place, Any]]:
        self._more(PIECE)
        self._text = self._text.removeprefix("\ufeff")
        if in_array := self._next() == "[":
            self._at += 1
        while following := self._next():
            if in_array and following == "]":
                self._at += 1
                if self._next():
                    raise self._place().error("something follows the end of the array: give one array per file")
                return
            self._number += 1
            yield self._place(), self._value()
            if in_array and (following := self._next()) == ",":
                self._at += 1
            elif in_array and following != "]":
                raise self._place().error("the array breaks off here: is the file complete?")
        if in_array:
            raise self._place().error("the array has no end: is the file complete?")

    def _value(self) -> Any:
        size = PIECE
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                open_end = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - _BREAKS_OFF
                if self._ended or not open_end:
                    at = error.pos - self._at
                    raise self._place().error(f"no JSON: {error.msg} ({at} characters on)") from error
            except RecursionError as error:
                raise self._place().error("nested too deep to be a trace") from error
            else:
                # A number at the end of what was read may go on.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            self._more(size)
            size *= 2

    def _next(self) -> str:
        """The next character that is no space; empty at the end of the file."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match is not None else self._at
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._more(PIECE)

    def _more(self, size: int) -> None:
        self._lines += self._text.count("\n", 0, self._at)
        piece = self._opened.read(size)
        self._ended = not piece
        raw = self._tail + piece
        cut = len(raw) if self._ended else _whole_characters(raw)
        self._tail = raw[cut:]
        self._text = self._text[self._at :] + raw[:cut].decode(errors="replace")
        self._at = 0

    def _place(self) -> Place:
        return Place(self._file, self._lines + self._text.count("\n", 0, self._at), max(self._number, 1))


def _whole_characters(raw: bytes) -> int:
    """How many bytes hold whole UTF-8 characters."""
    for back in range(1, min(4, len(raw)) + 1):
        if raw[-back] >= 0xC0:
            needed = 2 if raw[-back] < 0xE0 else 3 if raw[-back] < 0xF0 else 4
            return len(raw) if back >= needed else len(raw) - back
        if raw[-back] < 0x80:
            break
    return len(raw)
