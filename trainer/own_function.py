"""A function of the user's own: `package.module:function` in a TOML file, found where Python finds modules."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracegrad.errors import SettingsError


def is_own(name: str) -> bool:
    """Whether `name` is a path to a function and not one of our names."""
    return ":" in name


def own_function(path: str, what: str) -> Callable[..., Any]:
    """The function at `path`. `what` it is to be, for the error. Modules in the current directory are found too.

    Raises SettingsError where there is no such function.
    """
    module_name, _, function_name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError, SyntaxError) as error:
        raise SettingsError(
            f"the {what} {path!r} cannot be imported ({error}): name it as package.module:function, and see that the "
            "module is in this directory or installed"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        found = "is not a function" if hasattr(module, function_name) else "is not there"
        raise SettingsError(f"the {what} {path!r}: {function_name!r} {found} in {module.__file__ or module_name}")
    return function  # type: ignore[no-any-return]
