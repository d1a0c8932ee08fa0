"""A function of the user's own, `package.module:function` in a TOML file: a rule, a credit scheme, an estimator.

Its module is found where Python finds modules, in the current directory, or beside the file that names it. Whatever it
raises is an error of ours that names the function, the exception, and the line.
"""

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tracegrad.errors import SettingsError, TracegradError


def is_own(name: str) -> bool:
    """Whether `name` is a path to a function and not one of our names."""
    return ":" in name


def look_beside(file: Path) -> None:
    """From now on modules are found beside `file` too, after all other places."""
    _look_in(file.resolve().parent)


def own_function(path: str, what: str) -> Callable[..., Any]:
    """The function at `path`. `what` it is to be, for the error.

    Raises SettingsError where there is no such function.
    """
    module = module_of(path, what)
    function_name = path.partition(":")[2]
    function = getattr(module, function_name, None)
    if not callable(function):
        found = "is not a function" if hasattr(module, function_name) else "is not there"
        raise SettingsError(f"the {what} {path!r}: {function_name!r} {found} in {module.__file__ or module.__name__}")
    return function  # type: ignore[no-any-return]


def module_of(path: str, what: str) -> ModuleType:
    """The module of the function at `path`. Raises SettingsError where it cannot be imported."""
    _look_in(Path.cwd())
    try:
        return importlib.import_module(path.partition(":")[0])
    except Exception as error:
        # A module of the user's may raise anything.
        raise SettingsError(
            f"the {what} {path!r} cannot be imported ({told(error)}): name it as package.module:function, and see that "
            "the module is in this directory, beside the file that names it, or installed"
        ) from error


def called(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """What it returns. `name`: what it is, for the error. Raises TracegradError, whatever it raises itself."""
    try:
        return function(*arguments)
    except TracegradError:
        raise
    except Exception as error:
        raise TracegradError(f"the {name} failed: {told(error)}") from error


def told(error: Exception) -> str:
    """The exception in one line, with the line that raised it."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ImportError | SyntaxError) or not frames:
        return words  # it tells what is missing, or where
    return f"{words}, at {Path(frames[-1].filename).name}:{frames[-1].lineno}"


def _look_in(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
