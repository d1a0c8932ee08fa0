"""What one job leaves on disk: a record per step, checkpoints beside them, and a lock.

    <checkpoints>/<job>/lock
    <checkpoints>/<job>/00000012.json     the record: what the step consumed and what came of it
    <checkpoints>/<job>/00000012/         the checkpoint that the update ended in
    <checkpoints>/<job>/00000012.gate.json, .gate.md
                                          what its gate found, for programs and for people

Invariant: a step has happened exactly when its record is there and, if it changed the weights, its checkpoint too.
The record is in place before the checkpoint, and both appear by a rename, so a kill leaves either the whole step or
nothing that counts. Whether it reached the engines and the store is asked of those. A gate's report may be there
without a record: of a batch that was refused, until a step gets its number.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tracegrad.errors import TracegradError

GATE = ".gate"
"""What the names of gate reports have after the number of their step."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class SampleRecord(_Record):
    """One row of `train_samples`: a transition that a step consumed.

    `reward`: the credit it was trained with. For a rollout without a transition there is one row, with the span that
    stands for it and `no_calls`.
    """

    span_id: str
    trace_id: str
    rollout_id: str
    attempt: int
    agent: str
    reward: float
    advantage: float
    n_tokens: int
    used: bool
    drop_reason: str


class StepRecord(_Record):
    """One step of a job. `updated`: false when no sample could be trained on; then the version stays.

    `lineage`: the policy's versions, oldest first, up to `to_version`. `base_sha256`: of the weights that the job
    started from; empty when they are not one file. `config`: the `train.toml` of the step, as JSON.
    """

    number: int
    step_id: str
    job: str
    policy: str
    from_version: int
    to_version: int
    updated: bool
    algorithm: str
    config: str
    metrics: dict[str, float]
    started_ns: int
    ended_ns: int
    lineage: tuple[int, ...]
    base_sha256: str
    samples: tuple[SampleRecord, ...]


class JobDirectory:
    """The records and checkpoints of one job."""

    def __init__(self, checkpoints: Path, job: str) -> None:
        self._path = checkpoints / job
        self._job = job

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other trainer of this job out. Raises TracegradError where one is at work."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TracegradError(f"cannot write checkpoints to {self._path}: {error}") from error
        with (self._path / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.seek(0)
                raise TracegradError(
                    f"job {self._job!r} is already being trained by process {lock.read().strip() or '?'}: stop it, "
                    "or give this one another `job` name"
                ) from error
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def newest(self) -> StepRecord | None:
        """The newest step that has happened; None before the first."""
        for number in reversed(self._numbers()):
            record = self._read(number)
            if not record.updated or self.checkpoint(number).is_dir():
                return record
        return None

    def newest_checkpoint(self) -> Path | None:
        """The weights and optimizer to continue from; None before the first update."""
        for number in reversed(self._numbers()):
            if self.checkpoint(number).is_dir():
                return self.checkpoint(number)
        return None

    def checkpoint(self, number: int) -> Path:
        """Where the checkpoint of step `number` belongs."""
        return self._path / f"{number:08}"

    def write(self, record: StepRecord) -> None:
        """Put a record in its place, on the disk."""
        final = self._record_file(record.number)
        draft = final.with_suffix(".tmp")
        with draft.open("w") as file:
            file.write(record.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(final)
        directory = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def write_gate_report(self, number: int, for_programs: str, for_people: str) -> Path:
        """Put the gate's report on step `number` beside its record; returns the file for people."""
        path = self._path / f"{number:08}{GATE}.md"
        try:
            for file, text in ((path.with_suffix(".json"), for_programs), (path, for_people)):
                draft = file.with_suffix(".tmp")
                draft.write_text(text)
                draft.replace(file)
        except OSError as error:
            raise TracegradError(f"the gate's report {path} cannot be written: {error.strerror or error}") from error
        return path

    def prune(self, keep: int) -> None:
        """Delete all but the `keep` newest checkpoints, and the records and reports of steps before them."""
        numbers = self._numbers()
        kept = [number for number in numbers if self.checkpoint(number).is_dir()][-keep:]
        for number in numbers:
            if number not in kept and number != numbers[-1]:
                self._record_file(number).unlink()
        for report in self._path.glob(f"*{GATE}.*"):
            number = int(report.name.partition(".")[0])
            if number <= numbers[-1] and not self._record_file(number).exists():
                report.unlink()
        for path in self._path.iterdir():
            if path.is_dir() and path not in [self.checkpoint(number) for number in kept]:
                shutil.rmtree(path)

    def _numbers(self) -> list[int]:
        return sorted(int(file.stem) for file in self._path.glob("*.json") if file.stem.isdigit())

    def _record_file(self, number: int) -> Path:
        return self._path / f"{number:08}.json"

    def _read(self, number: int) -> StepRecord:
        file = self._record_file(number)
        try:
            return StepRecord.model_validate_json(file.read_bytes())
        except ValidationError as error:
            raise TracegradError(
                f"{file} is not a step record of this version of tracegrad: move {self._path} away, or train "
                "under another `job` name"
            ) from error
