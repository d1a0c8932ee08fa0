"""Answers and graders: what scores, and what must not."""

import pytest

from reward.answer import is_answer, last_line
from reward.graders import GRADERS, exact, numeric
from reward.graders.numeric import last_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 42.", 42),
        ("12 + 30 = 42", 42),
        ("10-5", 5),
        ("minus: -5", -5),
        ("\u22127", -7),
        ("$1,234.50 in total", 1234.5),
        ("1,2", 2),
        (".5", 0.5),
        ("2e3", 2000),
        ("**7**", 7),
        ("x5 has none", None),
        ("v1.2.3", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: float | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("The answer is 45.", "45", 1),
        ("The answer is 45.", 45, 1),
        ("45.0", "45", 1),
        ("33.33", "33.33", 1),
        ("46", "45", 0),
        ("no number", "45", 0),
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "40+5=45', "45", 0),
        ("45</tool_call>", "45", 0),
    ],
)
def test_numeric(answer: str, expected: object, score: float) -> None:
    assert numeric(answer, expected) == score


def test_numeric_needs_a_number_to_expect() -> None:
    with pytest.raises(ValueError, match="holds no number"):
        numeric("45", "forty-five")


def test_exact() -> None:
    assert exact(" Paris\n", "Paris") == 1
    assert exact("paris", "Paris") == 0
    assert exact("<tool_call>", "<tool_call>") == 0
    assert exact("", "") == 0
    assert set(GRADERS) == {"exact", "numeric"}


def test_the_answer_is_the_last_line_that_is_not_blank() -> None:
    assert last_line("thinking\n  The answer is 4. \n\n \n") == "The answer is 4."
    assert last_line("\n \n") == ""
    assert not is_answer(" ")
