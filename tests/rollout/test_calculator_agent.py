"""The example's calculator: the only part of it that is ours to get wrong."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def agent() -> ModuleType:
    file = Path(__file__).parents[2] / "examples" / "calculator_agent.py"
    spec = importlib.util.spec_from_file_location("calculator_agent", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("3*14", "42"),
        (" 7 / 2", "3.5"),
        ("10/3", "3.33"),
        ("-(2+3)*4", "-20"),
        ("6/3", "2"),
        ("1.50+1.5", "3"),
        ("1/0", "error"),
        ("2**9", "error"),
        ("7//2", "error"),
        ("__import__('os')", "error"),
        ("3+", "error"),
        ("True+1", "error"),
        ("1e308*1e308", "error"),
        ("(" * 500 + "1" + ")" * 500, "error"),
        ("x", "error"),
        ("", "error"),
        ("1\0", "error"),
    ],
)
def test_the_calculator_shows_numbers_briefly_and_errors_as_error(
    agent: ModuleType, expression: str, answer: str
) -> None:
    assert agent.calculator(json.dumps({"expression": expression})) == answer


@pytest.mark.parametrize("arguments", ["", "3+4", "[1]", '{"expr": "1"}', '{"expression": 3}', "null", '{"expression"'])
def test_arguments_as_a_model_may_write_them(agent: ModuleType, arguments: str) -> None:
    assert agent.calculator(arguments) == "error"
