"""Rows of text in columns."""

from collections.abc import Sequence

LONGEST = 500
"""Characters of a cell that are shown: one wide cell widens its whole column."""


def printable(text: str) -> str:
    """The text with what is no character to look at escaped: names come from anywhere, and would move the cursor."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row, under the header, each column as wide as its widest cell."""
    cells = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
