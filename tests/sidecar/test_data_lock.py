"""One sidecar per data directory, unless both say that one takes over from the other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_vllm import FakeVllm
from sidecar_process import COMMAND, configuration, sidecar_process
from stand_ins import Receiver

from sidecar.data_lock import data_lock
from tracegrad.errors import TracegradError


@pytest.mark.parametrize(("first", "second"), [(False, False), (True, False), (False, True)])
def test_a_directory_is_held_by_one(tmp_path: Path, first: bool, second: bool) -> None:
    directory = tmp_path / "new" / "data"
    with (
        data_lock(directory, shared=first),
        pytest.raises(TracegradError, match="another sidecar uses the data directory"),
        data_lock(directory, shared=second),
    ):
        pass
    with data_lock(directory, shared=second):
        pass


def test_those_that_share_it_hold_it_together(tmp_path: Path) -> None:
    with data_lock(tmp_path, shared=True), data_lock(tmp_path, shared=True):
        pass


def test_without_a_disk_nothing_is_held(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with data_lock(tmp_path / "file", shared=False), data_lock(tmp_path / "file", shared=False):
        pass
    assert "data directory cannot be locked" in caplog.text


def test_a_child_does_not_inherit_it(tmp_path: Path) -> None:
    with data_lock(tmp_path, shared=False):
        program = (sys.executable, "-c", "print(flush=True); input()")
        child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
        assert child.stdout is not None
        child.stdout.readline()  # it runs, so that its exec has closed what it should not have
    with data_lock(tmp_path, shared=False):
        child.kill()
        child.communicate()


async def test_a_second_sidecar_is_told_and_a_killed_one_holds_nothing(
    tmp_path: Path, fake: FakeVllm, receiver: Receiver
) -> None:
    entry = {"name": "policy", "upstream": fake.url, "policy": "policy"}
    file = configuration(tmp_path, receiver.url, entry, workers=2)
    async with sidecar_process(file) as first:
        done = subprocess.run(  # noqa: ASYNC221 - the first need not do anything meanwhile
            (*COMMAND, "--config", file), capture_output=True, text=True, timeout=30, check=False, env=os.environ
        )
        assert done.returncode == 1
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("tracegrad: ")]
        assert f"another sidecar uses the data directory {tmp_path / 'data'}" in line
        first.signal(signal.SIGKILL)
        await first.ended()
        async with sidecar_process(file):
            pass
