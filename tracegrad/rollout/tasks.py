"""Task files: one JSON object a line. `id` names the task.

Where it is missing, line number and content do: rollouts of one task id are compared with each other and graded alike,
so two files must not give one id to two tasks.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracegrad.errors import InputError


@dataclass(frozen=True)
class Task:
    """One task: its id, and every field of its row."""

    id: str
    fields: Mapping[str, Any]


def read_tasks(file: Path) -> list[Task]:
    """The tasks of a JSONL file, in order. Raises InputError with the line number."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read the task file {file}: {error.strerror}") from error
    tasks: dict[str, Task] = {}
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        task = _parse(line, f"{file}, line {number}", number)
        if task.id in tasks:
            raise InputError(f"{file}, line {number}: id {task.id!r} is already the one of line {line_of[task.id]}")
        tasks[task.id] = task
        line_of[task.id] = number
    if not tasks:
        raise InputError(f"{file} holds no task: give one JSON object a line")
    return list(tasks.values())


def _parse(line: bytes, where: str, number: int) -> Task:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error}): give one JSON object a line") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: a JSON {type(row).__name__}, not an object: give one JSON object a line")
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: holds half of a surrogate pair, which is not text") from error
    identity = row.get("id", f"line-{number}-{hashlib.sha256(line.strip()).hexdigest()[:8]}")
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        raise InputError(f"{where}: `id` must be a string or a whole number")
    return Task(str(identity), row)
