"""Task files and command lines: what is understood, and what is refused in one line that says where."""

from pathlib import Path

import pytest

from tracegrad.errors import InputError
from tracegrad.rollout.command import ForkedCommand, fill, own_programs, split_for_forking
from tracegrad.rollout.tasks import Task, read_tasks


def write(directory: Path, content: str | bytes) -> Path:
    file = directory / "tasks.jsonl"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_ids_come_from_the_row_or_from_line_and_content(tmp_path: Path) -> None:
    first = read_tasks(write(tmp_path, '{"id": "a", "q": "x"}\r\n\n{"id": 7}\n{"q": "caf\u00e9 \u2713"}'))
    assert [task.id for task in first][:2] == ["a", "7"]
    assert first[2].id.startswith("line-4-")
    assert first[2].fields == {"q": "caf\u00e9 \u2713"}
    other = read_tasks(write(tmp_path, '\n\n\n{"q": "another question"}'))
    assert other[0].id != first[2].id


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"id": 1}\nnonsense\n', "line 2: not JSON"),
        ("[1]\n", "line 1: a JSON list, not an object"),
        ('{"id": "a"}\n{"id": "a"}\n', "line 2: id 'a' is already the one of line 1"),
        ('{"id": true}\n', "line 1: `id` must be a string or a whole number"),
        ('{"id": ""}\n', "line 1: `id` must be"),
        (b'{"q": "\xff"}\n', "line 1: not JSON"),
        ('{"q": "\\ud800"}\n', "line 1: holds half of a surrogate pair"),
        ("\n \n", "holds no task"),
    ],
)
def test_what_is_no_task_is_named_by_its_line(tmp_path: Path, content: str | bytes, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        read_tasks(write(tmp_path, content))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl"):
        read_tasks(tmp_path / "nowhere.jsonl")


def test_fields_are_put_in_literally_and_other_braces_stay() -> None:
    task = Task("t", {"q": "a {q} b {{", "n": 3, "list": ["\u00e9"]})
    filled = fill(["{q}", "-n={n}", "{list}", '{"json": 1}', "{}", "${HOME}x{1}", "{{n}}"][:5], task)
    assert filled == ["a {q} b {{", "-n=3", '["\u00e9"]', '{"json": 1}', "{}"]
    with pytest.raises(InputError, match="task 't' has no field 'question', which the command uses; it has: q, n"):
        fill(["{question}"], task)
    with pytest.raises(InputError, match="NUL"):
        fill(["{q}"], Task("t", {"q": "a\0b"}))


@pytest.mark.parametrize(
    ("command", "parent", "arguments"),
    [
        ("opentelemetry-instrument python a.py {q} -v", "opentelemetry-instrument python", "{q} -v"),
        ("/x/python3.11 -u -X dev -W ignore a.py", "/x/python3.11 -u -X dev -W ignore", ""),
        ("opentelemetry-instrument --logs_exporter none python a.py {q}",) * 1
        + ("opentelemetry-instrument --logs_exporter none python", "{q}"),
    ],
)
def test_a_command_is_split_at_its_program(command: str, parent: str, arguments: str) -> None:
    expected = (*parent.split(), "-m", "tracegrad_otel.warm", "a.py")
    assert split_for_forking(command.split()) == ForkedCommand(expected, tuple(arguments.split()))


def test_modules_are_split_with_their_option() -> None:
    split = split_for_forking(["python", "-m", "my_agent", "{q}"])
    assert split == ForkedCommand(("python", "-m", "tracegrad_otel.warm", "-m", "my_agent"), ("{q}",))


@pytest.mark.parametrize("command", ["my-agent {q}", "python -c print(1)", "python", "python -m", "python {script}"])
def test_what_cannot_be_forked_is_refused(command: str) -> None:
    with pytest.raises(InputError, match="--warm cannot take this command"):
        split_for_forking(command.split())


def test_programs_are_found_beside_our_python_and_missing_ones_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    directory = own_programs(["opentelemetry-instrument"])
    assert directory is not None
    monkeypatch.setenv("PATH", directory)
    assert own_programs(["opentelemetry-instrument"]) is None
    with pytest.raises(InputError, match="no program 'no-such-agent'"):
        own_programs(["no-such-agent"])
