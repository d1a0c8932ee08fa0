"""What `--help` shows is what the source says: nothing in brackets is taken for markup."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.markup import render

from tracegrad.cli import app


def commands(one: Any, path: str = "tracegrad") -> Iterator[tuple[str, Any]]:
    yield path, one
    for name, inner in getattr(one, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", ALL)
def test_no_bracket_is_eaten(path: str) -> None:
    texts = [ALL[path].help, ALL[path].epilog, *(getattr(one, "help", None) for one in ALL[path].params)]
    for text in filter(None, texts):
        assert render(text).plain == text


def test_all_are_looked_at() -> None:
    assert {"tracegrad bench", "tracegrad prompt set", "tracegrad policy publish"} < ALL.keys()
