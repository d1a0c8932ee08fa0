"""`python -m tracegrad_otel.warm`: forked agents behave as separate processes do, and none outlives its parent."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BEHAVIOURS = """
import atexit, os, random, signal, sys, threading, time
import own_module
def later():
    time.sleep(0.2)
    print("thread", __name__, sys.modules["__main__"].later is later)
def fail():
    raise ValueError("no good")
atexit.register(lambda: print("exit handler"))
mode = sys.argv[1]
if mode == "normal":
    print(sys.argv, __name__, __file__, __spec__, os.getcwd(), sys.path[0], own_module.WHERE)
    threading.Thread(target=later).start()
elif mode == "raises":
    fail()
elif mode == "chained":
    try:
        fail()
    except ValueError as error:
        raise KeyError("worse") from error
elif mode == "exits":
    sys.exit(9)
elif mode == "says":
    sys.exit("goodbye")
elif mode == "interrupted":
    raise KeyboardInterrupt
elif mode == "segfault":
    os.kill(os.getpid(), signal.SIGSEGV)
elif mode == "hook":
    sys.excepthook = lambda *_: print("hooked", file=sys.stderr)
    fail()
elif mode == "stdin":
    print(repr(sys.stdin.read()))
elif mode == "random":
    print(random.random())
elif mode == "sleep":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("asleep", flush=True)
    time.sleep(60)
"""
OWN_MODULE = """
import os
WHERE = os.environ["WHERE"]
"""


class Parent:
    """A running parent, spoken to as the launcher does."""

    def __init__(self, directory: Path, *program: str, **variables: str) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tracegrad_otel.warm", *program],
            cwd=directory,
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        report: dict[str, Any] = json.loads(self.process.stdout.readline())
        return report

    def start(self, job: str, *argv: str, **env: str | None) -> None:
        assert self.process.stdin is not None
        message = {"id": job, "argv": argv, "env": env}
        message |= {stream: str(self.directory / f"{job}.{stream}") for stream in ("stdout", "stderr")}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def output(self, job: str) -> tuple[str, str]:
        return (self.directory / f"{job}.stdout").read_text(), (self.directory / f"{job}.stderr").read_text()

    def run(self, job: str, *argv: str, **env: str | None) -> tuple[int, str, str]:
        """(status, stdout, stderr) of one agent."""
        self.start(job, *argv, **env)
        assert self.read()["id"] == job
        report = self.read()
        return (-report["signal"] if "signal" in report else report["exit_code"], *self.output(job))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("agent")
    (home / "agent.py").write_text(BEHAVIOURS)
    (home / "own_module.py").write_text(OWN_MODULE)
    return home


@pytest.fixture(scope="module")
def parent(directory: Path) -> Iterator[Parent]:
    running = Parent(directory, "agent.py")
    assert "ready" in running.read()
    yield running
    assert running.process.stdin is not None
    running.process.stdin.close()
    assert running.process.wait(30) == 0


MODES = ("normal", "raises", "chained", "exits", "says", "interrupted", "segfault", "hook", "stdin")


@pytest.mark.parametrize("mode", MODES)
def test_a_forked_agent_ends_as_a_separate_process_does(parent: Parent, mode: str) -> None:
    forked = parent.run(mode, mode, "calc {1}", WHERE="here")
    separate = subprocess.run(
        [sys.executable, "agent.py", mode, "calc {1}"],
        cwd=parent.directory,
        env=os.environ | {"WHERE": "here"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert forked == (separate.returncode, separate.stdout, separate.stderr)


def test_agents_share_no_random_state_and_get_their_own_environment(parent: Parent) -> None:
    outputs = {parent.run(f"random{number}", "random", WHERE=str(number)) for number in range(3)}
    assert len(outputs) == 3
    status, _, stderr = parent.run("unset", "normal", WHERE=None)
    assert status == 1
    assert "KeyError: 'WHERE'" in stderr


def test_an_agent_that_cannot_start_and_a_line_that_is_no_job_leave_the_parent_alive(parent: Parent) -> None:
    assert parent.process.stdin is not None
    parent.process.stdin.write(b"nonsense\n")
    parent.process.stdin.flush()
    assert "not a job" in parent.read()["error"]
    parent.process.stdin.write(json.dumps({"id": "nowhere", "cwd": "/no/such/directory"}).encode() + b"\n")
    parent.process.stdin.flush()
    assert [parent.read().get("exit_code"), parent.read().get("exit_code")] == [None, 126]
    assert parent.run("after", "exits", WHERE="")[0] == 9


@pytest.mark.parametrize("ending", ["stdin closes", "SIGTERM"])
def test_no_agent_outlives_its_parent(directory: Path, ending: str) -> None:
    parent = Parent(directory, "agent.py")
    parent.read()
    job = f"sleeper {ending}"
    parent.start(job, "sleep", WHERE="")
    pid = parent.read()["pid"]
    deadline = time.monotonic() + 30
    stdout = directory / f"{job}.stdout"
    while not (stdout.exists() and "asleep" in stdout.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if ending == "SIGTERM":
        parent.process.send_signal(signal.SIGTERM)
    else:
        assert parent.process.stdin is not None
        parent.process.stdin.close()
    assert parent.process.wait(30) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_module_runs_as_python_m_does(tmp_path: Path) -> None:
    package = tmp_path / "my_agent"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("VALUE = 3")
    (package / "__main__.py").write_text("import sys\nfrom .part import VALUE\nprint(sys.argv[1:], __package__, VALUE)")
    parent = Parent(tmp_path, "-m", "my_agent")
    parent.read()
    assert parent.run("r", "a question") == (0, "['a question'] my_agent 3\n", "")
    parent.process.communicate()


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import (", "agent.py, line 1: "),
        ("import starts_a_thread", "an import starts threads (busy)"),
    ],
)
def test_what_cannot_be_forked_is_said_in_one_line(tmp_path: Path, source: str, complaint: str) -> None:
    (tmp_path / "agent.py").write_text(source)
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(5,), name='busy', daemon=True).start()"
    )
    as_if_installed = (
        f"import site, sys; site.getsitepackages = lambda: [{str(installed)!r}]; sys.path.append({str(installed)!r})\n"
        "sys.argv = ['warm', 'agent.py']\nfrom tracegrad_otel import warm; warm.main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", as_if_installed], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert complaint in result.stderr
    assert len(result.stderr.splitlines()) == 1
