"""What the processes of one sidecar know in common of each replica: numbers in shared slots of eight bytes.

Invariant: every slot has one writer, and a write is a single aligned store, so that no reader sees half a number and no
lock is held when a process dies. The publisher (one process) writes what concerns all; each process that serves writes
its own counts. With one process the slots lie in its own memory.

A publisher that dies must not stop the service: what it ordered counts while its beat is younger than `LEASE_S`. After
that calls are let in again. They are not stamped: the epoch of an update that never ended is odd for ever, until the
next publisher opens the board, ends the update, and marks that engine's weights as unknown.
"""

import mmap
import os
import secrets
import time
from array import array
from collections.abc import MutableSequence
from pathlib import Path

from tracegrad.errors import TracegradError

UPDATING, PAUSED, BROKEN, ASIDE = 1, 2, 4, 8
"""Flags of a replica: new calls wait for an update or an operator; its weights are unknown after an update that failed;
it is out of service because it runs other weights than it should, or unknown ones, and that could not be mended."""

ANY = -1
"""The wanted version while nothing was published."""
LEASE_S = 10.0
BEAT_S = 1.0
_MAGIC = 0x7467_626F_6172_6401
_REPLICAS, _WORKERS, _BEAT = 1, 2, 3
_HEAD = 4
_FLAGS, _EPOCH, _WANTED, _COUNTS = 0, 1, 2, 3
_SLOT_BYTES = 8


class Board:
    """The slots, as one process sees them. `worker` None: it serves no calls. `leads`: it is the publisher."""

    def __init__(
        self, slots: MutableSequence[int], *, worker: int | None, leads: bool, lease_s: float | None = None
    ) -> None:
        self.leads = leads
        self.replicas = slots[_REPLICAS]
        self.workers = slots[_WORKERS]
        self._slots = slots
        self._worker = worker
        self._lease_ns = None if lease_s is None else int(lease_s * 1e9)
        self._stride = _COUNTS + self.workers

    @classmethod
    def memory(cls, replicas: int, workers: int = 1) -> "Board":
        """A board for one process, which publishes and serves as worker 0."""
        return cls(array("q", _blank(replicas, workers)), worker=0, leads=True)

    @classmethod
    def shared(cls, file: Path, replicas: int, workers: int) -> "Board":
        """The publisher's view of a board in `file`, made anew or taken over from a publisher that has ended."""
        _create(file, replicas, workers)
        board = cls(_mapped(file), worker=None, leads=True)
        for replica in range(replicas):
            board._take_over(replica)
        board.beat()
        return board

    @classmethod
    def attach(cls, file: Path, worker: int, *, lease_s: float = LEASE_S) -> "Board":
        """A worker's view of a board that the publisher has made. Its counts begin at 0."""
        board = cls(_mapped(file), worker=worker, leads=False, lease_s=lease_s)
        if not 0 <= worker < board.workers:
            raise TracegradError(f"{file} has places for {board.workers} workers, not for number {worker}")
        board.clear_worker(worker)
        return board

    @property
    def serves(self) -> bool:
        """Whether this process serves calls."""
        return self._worker is not None

    @property
    def led(self) -> bool:
        """Whether the publisher lives, so that its orders count."""
        if self._lease_ns is None:
            return True
        return 0 <= time.monotonic_ns() - self._slots[_BEAT] < self._lease_ns

    def beat(self) -> None:
        """The publisher lives. To be called every `BEAT_S`."""
        self._slots[_BEAT] = time.monotonic_ns()

    def flags(self, replica: int) -> int:
        """What holds calls back from a replica, or keeps it out of service."""
        return self._slots[_HEAD + replica * self._stride + _FLAGS]

    def set_flag(self, replica: int, flag: int, *, on: bool) -> None:
        """The publisher sets or clears a flag."""
        assert self.leads  # noqa: S101 - a slot has one writer
        before = self.flags(replica)
        self._slots[_HEAD + replica * self._stride + _FLAGS] = before | flag if on else before & ~flag

    def epoch(self, replica: int) -> int:
        """Grows by one when an update of the replica's weights begins (odd: under way) and when it ends (even)."""
        return self._slots[_HEAD + replica * self._stride + _EPOCH]

    def bump(self, replica: int) -> None:
        """The publisher begins or ends an update, whatever comes of it."""
        assert self.leads  # noqa: S101 - a slot has one writer
        self._slots[_HEAD + replica * self._stride + _EPOCH] += 1

    def wanted(self, replica: int) -> int | None:
        """The version that the replica should run; None: whichever it has."""
        version = self._slots[_HEAD + replica * self._stride + _WANTED]
        return None if version == ANY else version

    def set_wanted(self, replica: int, version: int | None) -> None:
        """The publisher says which version the replica should run."""
        assert self.leads  # noqa: S101 - a slot has one writer
        self._slots[_HEAD + replica * self._stride + _WANTED] = ANY if version is None else version

    def count(self, replica: int, change: int) -> None:
        """A call of this process begins (1) or ends (-1) on the replica."""
        assert self._worker is not None  # noqa: S101 - a slot has one writer
        self._slots[_HEAD + replica * self._stride + _COUNTS + self._worker] += change

    def load(self, replica: int) -> int:
        """Calls in flight on the replica, of all processes."""
        first = _HEAD + replica * self._stride + _COUNTS
        return self._slots[first] if self.workers == 1 else sum(self._slots[first : first + self.workers])

    def clear_worker(self, worker: int) -> None:
        """A worker has died or begins: it has no calls in flight."""
        for replica in range(self.replicas):
            self._slots[_HEAD + replica * self._stride + _COUNTS + worker] = 0

    def vacate(self, replica: int) -> None:
        """The place belongs to another engine from now on: nothing that was known of the last one holds."""
        self._take_over(replica)
        self.set_flag(replica, BROKEN, on=False)
        self.set_wanted(replica, None)
        self.bump(replica)
        self.bump(replica)

    def _take_over(self, replica: int) -> None:
        if self.epoch(replica) % 2:
            self.set_flag(replica, BROKEN, on=True)
            self.bump(replica)
        self.set_flag(replica, UPDATING | PAUSED | ASIDE, on=False)


def _blank(replicas: int, workers: int) -> list[int]:
    return [_MAGIC, replicas, workers, 0] + [0, 0, ANY, *[0] * workers] * replicas


def _create(file: Path, replicas: int, workers: int) -> None:
    """Write a blank board unless the file is one of this shape already. Processes that have the old one keep it."""
    blank = array("q", _blank(replicas, workers)).tobytes()
    head = 3 * _SLOT_BYTES
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if file.is_file() and file.stat().st_size == len(blank) and file.read_bytes()[:head] == blank[:head]:
            return
        fresh = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, blank)
        finally:
            os.close(descriptor)
        fresh.replace(file)
    except OSError as error:
        raise TracegradError(f"{file} cannot be written ({error.strerror}): set [sidecar] data") from error


def _mapped(file: Path) -> MutableSequence[int]:
    try:
        with file.open("r+b") as content:
            slots = memoryview(mmap.mmap(content.fileno(), 0)).cast("q")
    except (OSError, ValueError, TypeError) as error:
        raise TracegradError(f"{file} cannot be read as a board: start the sidecar's main process first") from error
    if slots[0] != _MAGIC or len(slots) != len(_blank(slots[_REPLICAS], slots[_WORKERS])):
        raise TracegradError(f"{file} is not a board of this version: start the sidecar's main process first")
    return slots  # type: ignore[return-value]  # typeshed: a memoryview is no MutableSequence; here it is used as one
