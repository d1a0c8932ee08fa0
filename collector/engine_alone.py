"""What the engine's own parser does with OTLP requests with nothing around it: what the bench measures us by.

`python -m collector.engine_alone DIRECTORY` opens a store of its own there, with our schema. Each line of its input is
an order as JSON, `path` of a file of requests (each with its length before it, as four bytes) and how many `requests`
go into one insert; each line of its output says what that took. Reading, cutting into records and joining is done
before the clock starts; there is no receiver, no spool, no check of a body, no second thread of ours.
"""

import json
import struct
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

from collector.open_store import open_store
from collector.rows import pieces
from collector.signals import TRACES
from collector.store import Store
from tracegrad.settings import CollectorSettings

_COUNT = "SELECT count() FROM otel.otel_traces"


def insert(store: Store, path: Path, requests: int) -> dict[str, Any]:
    """Insert the requests of a file: rows, inserts, and the seconds and seconds of CPU time that they took."""
    bodies, before = read(path), _rows(store)
    batches = [_batch(bodies[at : at + requests]) for at in range(0, len(bodies), requests)]
    begun, cpu = time.monotonic(), time.process_time()
    for number, batch in enumerate(batches):
        store.insert(TRACES, batch, f"{path.name}-{number}")
    cpu_s, seconds = time.process_time() - cpu, time.monotonic() - begun
    return {"rows": _rows(store) - before, "inserts": len(batches), "seconds": seconds, "cpu_s": cpu_s}


def _batch(bodies: list[bytes]) -> list[bytes]:
    ends = accumulate(map(len, bodies))
    numbers = [end - len(body) for end, body in zip(ends, bodies, strict=True)]
    return [piece.data for piece in pieces(bodies, numbers)]


def read(path: Path) -> list[bytes]:
    """The requests in a file. Raises ValueError where the last one is cut off."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        at += 4 + size
        if at > len(data):
            raise ValueError(f"{path} is cut off")
        found.append(data[at - size : at])
    return found


def _rows(store: Store) -> int:
    return int(store.query(_COUNT).body)


def main() -> None:
    """Carry out orders until the input ends."""
    with open_store(CollectorSettings(data=Path(sys.argv[1]))) as opened:
        for line in sys.stdin:
            order = json.loads(line)
            sys.stdout.write(json.dumps(insert(opened.store, Path(order["path"]), order["requests"])) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
