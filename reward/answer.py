"""What an agent answered: the last line it printed."""

UNPARSED_CALL = ("<tool_call>", "</tool_call>")
"""Markup of a tool call that was malformed, so that the engine handed it on as text. It is no answer."""


def last_line(output: str) -> str:
    """The last line that is not blank, stripped; empty where there is none."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")


def is_answer(text: str) -> bool:
    """Whether `text` says something to the user, rather than nothing or a tool call that came out as text."""
    return bool(text.strip()) and not any(mark in text for mark in UNPARSED_CALL)
