"""What is wrong with a configuration, in its own words: sections in brackets, and what was probably meant."""

import difflib
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

PYDANTICS = "Value error, "
SHOWN_NAMES = 12


def explained(error: ValidationError, root: type[BaseModel], values: Mapping[str, Any], source: str) -> str:
    """One sentence about the first of the errors."""
    first = error.errors()[0]
    path = list(_known_part(root, first["loc"]))
    if first["type"] == "extra_forbidden":
        *path, name = first["loc"]
        return f"unknown setting {name}{_inside(path, values)} in {source}: {_meant(root, path, str(name))}"
    if len(path) == 1 and (wrong := _wrong_brackets(root, str(path[0]), first["input"])):
        return f"bad setting in {source}: {wrong}"
    if first["type"] == "missing":
        *path, name = path
        return f"missing setting {name}{_inside(path, values)} in {source}: give it a value"
    if not path:
        return f"bad setting in {source}: {first['msg'].removeprefix(PYDANTICS)}"
    return f"bad setting {_named(path, values)} in {source}: {first['msg'].removeprefix(PYDANTICS)}"


def unknown_variable(root: type[BaseModel], name: str, section: str) -> str:
    """A sentence about an environment variable `name` that begins as those of `section` do, and is none of them."""
    prefix = f"TRACEGRAD_{section}_".upper()
    meant = _meant(root, [section], name.removeprefix(prefix).lower())
    if meant.startswith("did you mean "):
        meant = f"did you mean {prefix}{meant.removeprefix('did you mean ').upper()}"
    return f"unknown setting {name} in the environment: [{section}] has no such setting, {meant}"


def _known_part(root: type[BaseModel], loc: Sequence[str | int]) -> Iterator[str | int]:
    """The part of a place that names settings, without what only says which of several types was tried."""
    model: type[BaseModel] | None = root
    for part in loc:
        if isinstance(part, int):
            yield part
            continue
        if model is None or part not in model.model_fields:
            return
        yield part
        model = _model_in(model.model_fields[part].annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a setting holds, or a list of which; None where it holds a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(inner) for inner in typing.get_args(annotation))
    return next((one for one in found if one is not None), None)


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) is tuple and _model_in(annotation) is not None


def _wrong_brackets(root: type[BaseModel], name: str, given: Any) -> str | None:
    annotation = root.model_fields[name].annotation
    if _model_in(annotation) is None:
        return None
    if _is_list(annotation) and isinstance(given, Mapping):
        return f"write [[{name}]] instead of [{name}]: there may be several"
    if not _is_list(annotation) and isinstance(given, list | tuple):
        return f"write [{name}] instead of [[{name}]]: there is one"
    return None


def _named(path: Sequence[str | int], values: Mapping[str, Any]) -> str:
    """A setting and its section: `[sidecar] port`, `[[model]] 'a' upstream`."""
    section, rest = _section(path, values)
    return " ".join((*section, *(str(part) for part in rest)))


def _inside(path: Sequence[str | int], values: Mapping[str, Any]) -> str:
    return f" in {_named(path, values)}" if path else ""


def _section(path: Sequence[str | int], values: Mapping[str, Any]) -> tuple[list[str], Sequence[str | int]]:
    if len(path) > 1 and isinstance(path[1], int):
        entries = values.get(str(path[0]))
        entry = entries[path[1]] if isinstance(entries, list | tuple) and path[1] < len(entries) else None
        name = entry.get("name") if isinstance(entry, Mapping) else None
        which = repr(name) if isinstance(name, str) else f"number {path[1] + 1}"
        return [f"[[{path[0]}]]", which], path[2:]
    if len(path) > 1 or (path and isinstance(values.get(str(path[0])), Mapping)):
        return [f"[{path[0]}]"], path[1:]
    return [], path


def _meant(root: type[BaseModel], path: Sequence[str | int], name: str) -> str:
    model: type[BaseModel] | None = root
    for part in path:
        if isinstance(part, str) and model is not None and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation)
    known = list(model.model_fields) if model is not None else []
    if close := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {close[0]}?"
    for section, field in root.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None and inner is not model and name in inner.model_fields:
            return f"it belongs into {f'[[{section}]]' if _is_list(field.annotation) else f'[{section}]'}"
    shown = ", ".join(known[:SHOWN_NAMES]) + (", ..." if len(known) > SHOWN_NAMES else "")
    return f"there are {shown}"
