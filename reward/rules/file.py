"""A file of rules: `[rules]`, and one table `[rules.NAME]` for each rule."""

import difflib
import hashlib
import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from reward.rules.facts import Attempt
from reward.rules.kinds import KINDS
from reward.rules.rule import Rule
from reward.rules.settings import OwnSettings, RuleSettings
from tracegrad.errors import SettingsError
from tracegrad.own_function import look_beside, module_of, own_function

NAME = re.compile(r"[A-Za-z0-9_-]+")
VERSION_DIGITS = 12


def load(file: Path) -> list[Rule]:
    """The rules of a file. Raises SettingsError with one line that names the setting."""
    try:
        values = tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise SettingsError(f"no rules at {file}") from error
    except OSError as error:
        raise SettingsError(f"the rules {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not TOML: {error}") from error
    if others := sorted(values.keys() - {"rules"}):
        raise SettingsError(
            f"unknown setting {others[0]} in {file}: there is [rules], with a table [rules.NAME] a rule"
        )
    tables = values.get("rules", {})
    if not isinstance(tables, dict):
        raise SettingsError(f"bad setting rules in {file}: write [rules.NAME] for each rule")
    version = tables.pop("version", "")
    if not isinstance(version, str):
        raise SettingsError(f"bad setting [rules] version in {file}: write it as a text, in quotes")
    return [_rule(name, table, version, file) for name, table in tables.items()]


def _rule(name: str, table: Any, version: str, file: Path) -> Rule:
    where = f"[rules.{name}]"
    if not isinstance(table, dict):
        raise SettingsError(
            f"unknown setting [rules] {name} in {file}: there is version, and a table [rules.NAME] for each rule"
        )
    if NAME.fullmatch(name) is None:
        raise SettingsError(f"bad name of {where} in {file}: use letters, digits, _ and -")
    if "function" in table:
        own = _checked(OwnSettings, table, where, file)
        assert isinstance(own, OwnSettings)  # noqa: S101 - the class was given
        look_beside(file)
        what = f"function of {where} in {file}"
        function, code = own_function(own.function, what), _text_of(module_of(own.function, what))
        return Rule(name, name, own, _digest(own.function, code, version, own), function)
    kind = table.pop("rule", name)
    if not isinstance(kind, str) or kind not in KINDS:
        close = difflib.get_close_matches(str(kind), KINDS, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise SettingsError(
            f"{where} in {file} is no rule: {meant}There are {', '.join(KINDS)}; "
            'one of your own has function = "module:function"'
        )
    settings = _checked(KINDS[kind].settings, table, where, file)
    code = str(KINDS[kind].version)
    return Rule(name, kind, settings, _digest(kind, code, version, settings), partial(_find, kind, settings))


def _find(kind: str, settings: RuleSettings, attempt: Attempt) -> Iterable[Any]:
    return KINDS[kind].find(attempt, settings)


def _checked(model: type[RuleSettings], table: Mapping[str, Any], where: str, file: Path) -> RuleSettings:
    try:
        return model.model_validate(table)
    except ValidationError as error:
        # A name that is misspelt is also missing.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = list(model.model_fields)
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise SettingsError(f"unknown setting {where} {name} in {file}: {meant}") from error
        if first["type"] == "missing":
            raise SettingsError(f"missing setting {where} {name} in {file}: give it a value") from error
        said = first["msg"].removeprefix("Value error, ")
        raise SettingsError(f"bad setting {where} {name} in {file}: {said}") from error


def _text_of(module: ModuleType) -> str:
    """The module's own text or, where it is compiled and has none, its version."""
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return str(getattr(module, "__version__", ""))


def _digest(kind: str, code: str, version: str, settings: RuleSettings) -> str:
    told = json.dumps([kind, code, version, settings.model_dump()], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:VERSION_DIGITS]
