"""Two collectors never work in one directory, and the second says who is there."""

import errno
import fcntl
import os
import socket
from pathlib import Path

import pytest

from collector.directory_lock import hold
from tracegrad.errors import TracegradError


def test_the_second_says_who_holds_it(tmp_path: Path) -> None:
    with hold(tmp_path / "spool", "the spool", "--data"):
        told = rf"the spool in .* \(process {os.getpid()} on {socket.gethostname()}\): stop it or choose another --data"
        with pytest.raises(TracegradError, match=told):
            hold(tmp_path / "spool", "the spool", "--data")
        hold(tmp_path / "other", "the spool", "--data").close()
    hold(tmp_path / "spool", "the spool", "--data").close()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TracegradError, match=r"cannot keep the store in .*: Not a directory; choose another --data"):
        hold(tmp_path / "file" / "store", "the store", "--data")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_that_does_not_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Such as a network's: no such file system can be had in a test, so what it answers is put in its place."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(TracegradError, match=r"does not lock files .* choose a local directory with --data"):
        hold(tmp_path, "the store", "--data")
