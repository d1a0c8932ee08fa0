"""The agent's command line: fields of a task put into it, and the part of it that forked agents share.

`{field}` is replaced literally where it is a name; every other brace stays as it is.
"""

import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from tracegrad.errors import InputError
from tracegrad.rollout.tasks import Task

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
PYTHON = re.compile(r"python[0-9.]*(\.exe)?")
PYTHON_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
INSTRUMENT = "opentelemetry-instrument"


@dataclass(frozen=True)
class ForkedCommand:
    """A command split for forking: what starts the parent, and the arguments that each agent gets for itself."""

    parent: tuple[str, ...]
    arguments: tuple[str, ...]


def fill(arguments: Sequence[str], task: Task) -> list[str]:
    """`arguments` with the task's fields. Raises InputError for a field that the task lacks."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in task.fields:
            known = ", ".join(task.fields)
            raise InputError(f"task {task.id!r} has no field {match[1]!r}, which the command uses; it has: {known}")
        field = task.fields[match[1]]
        return field if isinstance(field, str) else json.dumps(field, ensure_ascii=False)

    filled = [PLACEHOLDER.sub(value, argument) for argument in arguments]
    if any("\0" in argument for argument in filled):
        raise InputError(f"task {task.id!r} puts a NUL character into the command, which no process can receive")
    return filled


def own_programs(command: Sequence[str]) -> str | None:
    """The directory to search before PATH so that the command's program is found; None where PATH has it.

    A `tracegrad` that is run without activating its environment finds what is installed beside it, `python` included.
    Raises InputError where the program is nowhere.
    """
    if not command:
        raise InputError("no command: put the agent's after `--`, e.g. -- python my_agent.py '{question}'")
    if shutil.which(command[0]) is not None:
        return None
    beside = str(Path(sys.executable).parent)
    if shutil.which(command[0], path=beside) is not None:
        return beside
    hint = (
        ": pip install ./otel-config/agent in a checkout of tracegrad"
        if PurePath(command[0]).name == INSTRUMENT
        else ""
    )
    raise InputError(f"no program {command[0]!r} to run{hint}")


def split_for_forking(command: Sequence[str]) -> ForkedCommand:
    """`[opentelemetry-instrument ...] python [options] SCRIPT|-m MODULE` is the parent's; the rest each agent's.

    Raises InputError for a command of another form.
    """
    interpreter = next((i for i, part in enumerate(command) if PYTHON.fullmatch(PurePath(part).name)), None)
    if interpreter is None or (interpreter > 0 and PurePath(command[0]).name != INSTRUMENT):
        raise InputError(_form("no python in it that the agents could be forked from"))
    position = interpreter + 1
    while position < len(command) and command[position].startswith("-") and command[position] != "-m":
        if command[position].startswith("-c") or command[position] == "-":
            raise InputError(_form("its program is no file and no module"))
        position += 2 if command[position] in PYTHON_OPTIONS_WITH_VALUE else 1
    end = position + (2 if position < len(command) and command[position] == "-m" else 1)
    program = command[position:end]
    if end > len(command) or any(PLACEHOLDER.search(part) for part in program):
        raise InputError(_form("its program is not one for all tasks"))
    parent = (*command[:position], "-m", "tracegrad_otel.warm", *program)
    return ForkedCommand(parent, tuple(command[end:]))


def _form(what: str) -> str:
    return (
        f"--warm cannot take this command: {what}; "
        "give `opentelemetry-instrument python SCRIPT ...` (or -m MODULE), or leave --warm out"
    )
