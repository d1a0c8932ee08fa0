"""A process that carries out orders: a line of JSON in, a line of JSON out."""

import contextlib
import select
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tracegrad.bench import processes
from tracegrad.bench.processes import Running

LIMIT_S = 300.0


@dataclass(frozen=True)
class Ordered:
    """One that runs."""

    running: Running

    def order(self, what: Any, limit_s: float = LIMIT_S) -> Any:
        """What came of an order. Raises TracegradError where the process dies or takes too long."""
        given, said = self.running.process.stdin, self.running.process.stdout
        assert given is not None  # noqa: S101 - they are pipes
        assert said is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):
            given.write(orjson.dumps(what) + b"\n")
            given.flush()
        if not select.select([said], [], [], limit_s)[0]:
            raise self.running.failure(f"did not answer within {limit_s:.0f} s")
        line = said.readline()
        if not line:
            self.running.process.wait(processes.STOP_S)
            raise self.running.failure(f"ended with status {self.running.process.returncode}")
        return orjson.loads(line)


@contextlib.contextmanager
def ordered(
    name: str, module: str, arguments: Sequence[str], directory: Path, cores: Collection[int]
) -> Iterator[Ordered]:
    """`python -m module`, while the block runs."""
    argv = [sys.executable, "-m", module, *arguments]
    with processes.started(name, argv, directory, cores, talks=True) as running:
        yield Ordered(running)
