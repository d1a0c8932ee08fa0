"""What a file of rules may say, and in which words it is refused."""

import sys
from pathlib import Path

import pytest

from reward.rules.file import load
from reward.rules.kinds import KINDS
from tracegrad.errors import SettingsError

ALL = """
[rules]
version = "2"
[rules.tool_failed]
weight = -0.1
tools = ["search", "read_.*"]
[rules.tool_retried]
weight = -0.1
agents = ["writer"]
[rules.invalid_tool_arguments]
weight = -1
[rules.malformed_tool_call]
weight = -1.0
[rules.answer_truncated]
weight = -0.5
cap = 1
[rules.context_overflow]
weight = -0.5
[rules.latency]
weight = -0.01
above_s = 5
of = "rollout"
[rules.slow_calls]
rule = "latency"
weight = -0.01
of = "call"
agents = ["writer"]
[rules.cost]
weight = -1.0
input_per_million = 0.15
output_per_million = 0.60
models = ["gpt-.*"]
"""


def written(directory: Path, text: str) -> Path:
    file = directory / "rules.toml"
    file.write_text(text)
    return file


def test_every_rule_can_be_named(tmp_path: Path) -> None:
    rules = {rule.name: rule for rule in load(written(tmp_path, ALL))}
    assert rules.keys() == KINDS.keys() | {"slow_calls"}
    assert rules["slow_calls"].label == "latency"
    assert rules["answer_truncated"].settings.cap == 1
    assert len({rule.version for rule in rules.values()}) == len(rules)


@pytest.mark.parametrize(
    "changed",
    [ALL.replace("weight = -0.01\nabove_s", "weight = -0.02\nabove_s"), ALL.replace("above_s = 5", "above_s = 6")],
)
def test_a_version_is_of_one_rules_settings(tmp_path: Path, changed: str) -> None:
    before = {rule.name: rule.version for rule in load(written(tmp_path, ALL))}
    after = {rule.name: rule.version for rule in load(written(tmp_path, changed))}
    assert {name for name in before if before[name] != after[name]} == {"latency"}


def test_a_version_that_is_told_is_part_of_every_rules(tmp_path: Path) -> None:
    before = {rule.version for rule in load(written(tmp_path, ALL))}
    after = {rule.version for rule in load(written(tmp_path, ALL.replace('"2"', '"3"')))}
    assert not before & after


def test_the_version_of_a_rule_of_ones_own_is_that_of_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = []
    for number in (1, 2, 1):
        directory = tmp_path / str(len(versions))
        directory.mkdir()
        (directory / "own_rule_for_versions.py").write_text(f"def find(attempt):\n    return [('', {number}, 'x')]\n")
        file = written(directory, '[rules.own]\nweight = 1.0\nfunction = "own_rule_for_versions:find"')
        monkeypatch.delitem(sys.modules, "own_rule_for_versions", raising=False)
        with monkeypatch.context() as patched:
            patched.setattr("sys.path", [str(directory), *sys.path])
            versions.append(load(file)[0].version)
    assert versions[0] == versions[2] != versions[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[rules.tool_faild]\nweight = 1",
            r"\[rules\.tool_faild\] in .* is no rule: did you mean tool_failed\? There are",
        ),
        (
            "[rules.x]\nweight = 1",
            r'\[rules\.x\] in .* is no rule: There are tool_failed, .* function = "module:function"',
        ),
        ("[rules.x]\nrule = 3\nweight = 1", r"\[rules\.x\] in .* is no rule"),
        ("[rules.tool_failed]", r"missing setting \[rules\.tool_failed\] weight in .*: give it a value"),
        (
            "[rules.tool_failed]\nwieght = 1",
            r"unknown setting \[rules\.tool_failed\] wieght in .*: did you mean weight\?",
        ),
        (
            "[rules.tool_failed]\nweight = 1\ntool = []",
            r"unknown setting \[rules\.tool_failed\] tool in .*: did you mean tools\?",
        ),
        (
            "[rules.answer_truncated]\nweight = 1\ntools = ['x']",
            r"unknown setting \[rules\.answer_truncated\] tools in .*: there are weight, cap, agents",
        ),
        ('[rules.tool_failed]\nweight = "much"', r"bad setting \[rules\.tool_failed\] weight in .*valid number"),
        ("[rules.tool_failed]\nweight = true", r"bad setting \[rules\.tool_failed\] weight"),
        (
            "[rules.tool_failed]\nweight = -1e7",
            r"bad setting \[rules\.tool_failed\] weight in .*greater than or equal to",
        ),
        ("[rules.tool_failed]\nweight = nan", r"bad setting \[rules\.tool_failed\] weight in .*finite"),
        ("[rules.tool_failed]\nweight = 1\ncap = 0", r"bad setting \[rules\.tool_failed\] cap in .*greater than 0"),
        ("[rules.tool_failed]\nweight = 1\ntools = ['(']", r"tools in .*'\(' is no regular expression"),
        ("[rules.latency]\nweight = 1\nof = 'agent'", r"\[rules\.latency\] of in .*'rollout' or 'call'"),
        ("[rules.latency]\nweight = 1\nagents = ['x']", r"\[rules\.latency\] of in .*: with agents it must be 'call'"),
        ("[rules.cost]\nweight = 1\ninput_per_million = 1", r"missing setting \[rules\.cost\] output_per_million"),
        ("[rules]\nweight = 1", r"unknown setting \[rules\] weight"),
        ("[rules]\nversion = 2", r"bad setting \[rules\] version in .*: write it as a text"),
        ("rules = 3", r"bad setting rules in .*: write \[rules\.NAME\]"),
        ("[data]\nx = 1", r"unknown setting data in .*: there is \[rules\]"),
        ("[rules.'a b']\nweight = 1", r"bad name of \[rules\.a b\]"),
        ("[rules", "is not TOML"),
        ("[rules.own]\nweight = 1\nfunction = 'nothing'", r"\[rules\.own\] function in .*: write module:function"),
        (
            "[rules.own]\nweight = 1\nfunction = 'no_such_module_x:f'",
            r"\[rules\.own\] in .* 'no_such_module_x:f' cannot be imported \(ModuleNotFoundError: No module",
        ),
        ("[rules.own]\nweight = 1\nfunction = 'json:no_such'", r"\[rules\.own\] in .*: 'no_such' is not there in"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        load(written(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "rules.toml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no rules at"):
        load(tmp_path / "absent.toml")
