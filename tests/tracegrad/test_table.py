"""Tables: names come from anywhere, and none of them breaks a line or moves the cursor."""

from tracegrad.cli.table import LONGEST, table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(["A", "B"], [["long", "1"], ["x", ""]]) == ["A     B", "long  1", "x"]


def test_what_cannot_be_looked_at_is_escaped_and_what_is_endless_is_cut() -> None:
    (_, row) = table(["NAME"], [["a\n\x1b[31mb\u202e\N{LATIN SMALL LETTER E WITH ACUTE}"]])
    assert row == "a\\n\\x1b[31mb\\u202e\N{LATIN SMALL LETTER E WITH ACUTE}"
    (_, row) = table(["NAME"], [["x" * 20_000]])
    assert row == "x" * LONGEST + "..."
