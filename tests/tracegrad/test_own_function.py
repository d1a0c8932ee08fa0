"""Functions of the user's own: where they are found, and that whatever is wrong with one is a single line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reward.rules import file as rules
from tracegrad.errors import SettingsError, TracegradError
from tracegrad.own_function import called, own_function
from trainer import config
from trainer.credit import scheme_named

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A function that writes a module beside the user's files, which is not where the test runs; its name."""
    monkeypatch.setattr("sys.path", [*sys.path])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    def writes(name: str, source: str) -> str:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return writes


def test_a_job_finds_its_scheme_beside_its_file_as_rules_do(write: Write, tmp_path: Path) -> None:
    name = write("beside_the_file", "def find(attempt):\n    return [2.0]\n")
    with pytest.raises(SettingsError, match="cannot be imported"):
        scheme_named(f"{name}:find")
    job = tmp_path / "train.toml"
    job.write_text(f'[engine]\nmodel = "m"\n[credit]\nscheme = "{name}:find"\n')
    assert own_function(config.load(job).credit.scheme, "credit scheme").__module__ == name


def test_rules_find_theirs(write: Write, tmp_path: Path) -> None:
    name = write("beside_the_rules", "def find(attempt):\n    return [('', 1.0, 'x')]\n")
    file = tmp_path / "rules.toml"
    file.write_text(f'[rules.own]\nweight = 1.0\nfunction = "{name}:find"\n')
    (rule,) = rules.load(file)
    assert rule.find.__module__ == name  # type: ignore[attr-defined]


def test_a_module_may_raise_anything(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = write("raises_at_import", "x = 1\ny = x / 0\n")
    with pytest.raises(SettingsError) as raised:
        scheme_named(f"{name}:f")
    said = (
        "the credit scheme 'raises_at_import:f' cannot be imported (ZeroDivisionError: division by zero, at raises_at_"
    )
    assert str(raised.value).startswith(said + "import.py:2): name it as package.module:function")


def test_a_function_may_raise_anything() -> None:
    def wrong(_: int) -> None:
        raise KeyError("two\nlines")

    with pytest.raises(TracegradError, match=r"^the rule 'a:b' failed: KeyError: .*, at test_own_function.py:\d+$"):
        called(wrong, "rule 'a:b'", 1)
