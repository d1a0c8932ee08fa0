"""Only installed packages are imported before the fork; the agent's own modules are read, never run."""

import sys
from pathlib import Path

import pytest
from tracegrad_otel.preload import InstalledImports, find_source, import_all

AGENT = """
from __future__ import annotations
import json, own, package.inner
import os.path as path
from openai import OpenAI
from . import nothing
try:
    import numpy
except ImportError:
    import not_there_either
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
def later():
    import pandas
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "own.py").write_text("import httpx2\nimport agent\nraise SystemExit('never run')")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from .sibling import something")
    (tmp_path / "package" / "inner.py").write_text("import aiohttp\nimport (")
    (tmp_path / "package" / "sibling.py").write_text("import yarl")
    return tmp_path


def test_installed_imports_of_the_agent_and_its_own_modules_are_found(home: Path) -> None:
    imports = InstalledImports([str(home), *sys.path])
    imports.read(home / "agent.py")
    assert {"json", "openai", "numpy", "httpx2", "yarl"} <= set(imports.names)
    absent = {"own", "package", "torch", "pandas", "not_there_either", "aiohttp", "agent"}
    assert not absent & {name.partition(".")[0] for name in imports.names}
    assert "own" not in sys.modules


def test_sources_are_found_without_importing(home: Path) -> None:
    assert find_source("package.inner", [str(home)]) == [
        (home / "package" / "__init__.py", "package"),
        (home / "package" / "inner.py", "package"),
    ]
    assert find_source("openai", sys.path) is None
    assert find_source("no_such_module", [str(home)]) is None


def test_an_import_that_fails_is_left_to_the_agent() -> None:
    assert import_all(["json", "json.loads", "no_such_module_at_all"]) == ["no_such_module_at_all"]
