"""A load generator for collectors, as a process: `python -m tracegrad.bench.collector_load`.

Each line of its input is an order as JSON, and each line of its output what came of it. *Closed loop*: so many
connections each send their next request when the one before is acknowledged. *Open loop*: requests are due at so many a
second, each at a chance moment of its share of the time, and a latency runs from when its request was due, however
late it was sent. Refused requests (429, 503, UNAVAILABLE, RESOURCE_EXHAUSTED) are sent again, as exporters do, and
their time runs on. Invariant: every request is answered well or counted as an error.
"""

import asyncio
import gc
import os
import random
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import uvloop

from tracegrad.bench.collector_markers import Markers
from tracegrad.bench.collector_send import Refused, Rejected, Send, sender
from tracegrad.bench.collector_spans import Requests, Shape
from tracegrad.http_client import HttpError

MOST_ERRORS = 20
PATIENCE_S = 60.0
_SIZE = struct.Struct("<I").pack


@dataclass(frozen=True)
class Load:
    """What to send: `count` requests from serial number `first` on. `per_s`: requests; 0: a closed loop."""

    port: int
    spans: int
    small: bool
    first: int
    count: int
    begun_ns: int
    connections: int = 8
    per_s: float = 0.0
    grpc: bool = False
    sql_port: int = 0
    marker_every: int = 0
    """Each so manieth request is a marker, which is queried for until it is there; 0: none."""


@dataclass
class Sent:
    """What came of a load. Times in ms; `began` and `ended` on the machine's monotonic clock."""

    requests: int = 0
    size: int = 0
    """In bytes."""
    refused: int = 0
    errors: int = 0
    first_error: str = ""
    began: float = 0.0
    ended: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    most_ms: float = 0.0
    late_p99_ms: float = 0.0
    """How late the generator itself was in an open loop."""
    queryable_ms: list[float] = field(default_factory=list)
    """From a marker's acknowledgement until a query finds it."""
    cpu_s: float = 0.0
    """Of the generator."""


@lru_cache(maxsize=8)
def _requests(spans: int, begun_ns: int, *, small: bool) -> Requests:
    return Requests(Shape(spans, small), begun_ns)


class Generator:
    """Runs one load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._requests = _requests(load.spans, load.begun_ns, small=load.small)
        self._next = load.first
        self._sent = Sent()
        self._latencies: list[float] = []
        self._late: list[float] = []
        self._gate = asyncio.Semaphore(load.connections)
        self._markers = Markers(load.sql_port)

    async def run(self) -> Sent:
        """Send everything."""
        begun = time.process_time()
        async with sender(self._load.port, grpc=self._load.grpc, connections=self._load.connections) as send:
            self._sent.began = time.monotonic()
            if self._load.per_s:
                await self._open_loop(send)
            else:
                await asyncio.gather(*(self._closed_loop(send) for _ in range(self._load.connections)))
        sent = self._sent
        sent.requests = len(self._latencies)
        sent.p50_ms, sent.p99_ms, sent.most_ms = (
            _at(self._latencies, 0.5),
            _at(self._latencies, 0.99),
            _at(self._latencies, 1),
        )
        sent.late_p99_ms = _at(self._late, 0.99)
        sent.cpu_s = time.process_time() - begun
        return sent

    async def _closed_loop(self, send: Send) -> None:
        while self._next < self._load.first + self._load.count and self._sent.errors < MOST_ERRORS:
            serial = self._next
            self._next += 1
            await self._one(send, self._requests.request(serial), time.monotonic())

    async def _open_loop(self, send: Send) -> None:
        load, chance = self._load, random.Random(self._load.first)  # noqa: S311 - no secret
        async with asyncio.TaskGroup() as tasks:
            for number in range(load.count):
                serial = load.first + number
                marker = bool(load.marker_every) and number % load.marker_every == load.marker_every // 2
                body = self._requests.request(serial, marker=marker)
                due = self._sent.began + (number + chance.random()) / load.per_s
                await asyncio.sleep(due - time.monotonic())
                if self._sent.errors >= MOST_ERRORS:
                    break
                tasks.create_task(self._due(send, body, due, serial if marker else None))
        await self._markers.finish()
        self._sent.queryable_ms = self._markers.queryable_ms
        if self._markers.problem:
            self._failed(self._markers.problem)

    async def _due(self, send: Send, body: bytes, due: float, marker: int | None) -> None:
        self._late.append(time.monotonic() - due)
        async with self._gate:
            stored = await self._one(send, body, due)
        if stored and marker is not None:
            self._markers.acknowledged(marker)

    async def _one(self, send: Send, body: bytes, due: float) -> bool:
        """Whether it was acknowledged at last."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                await send(body)
            except Refused as refusal:
                self._sent.refused += 1
                if time.monotonic() > deadline:
                    self._failed(f"refused for {PATIENCE_S:.0f} s: {refusal}")
                    return False
                await asyncio.sleep(refusal.retry_after_s or 0.1)
            except (Rejected, HttpError) as error:
                self._failed(str(error))
                return False
            else:
                break
        now = time.monotonic()
        self._latencies.append(now - due)
        self._sent.size += len(body)
        self._sent.ended = now
        return True

    def _failed(self, why: str) -> None:
        self._sent.errors += 1
        self._sent.first_error = self._sent.first_error or why


def _at(seconds: list[float], share: float) -> float:
    """That share of them took no longer, in ms; 0 without any."""
    ordered = sorted(seconds)
    return ordered[round(share * (len(ordered) - 1))] * 1e3 if ordered else 0.0


def _send(order: dict[str, Any]) -> dict[str, Any]:
    return asdict(uvloop.run(Generator(Load(**order)).run()))


def _write(order: dict[str, Any]) -> dict[str, Any]:
    """The requests of a load as a file: each with its length before it, as four bytes."""
    load, size = Load(**order["load"]), 0
    requests = _requests(load.spans, load.begun_ns, small=load.small)
    with Path(order["path"]).open("wb") as file:
        for serial in range(load.first, load.first + load.count):
            body = requests.request(serial)
            file.write(_SIZE(len(body)))
            size += file.write(body)
    return {"size": size}


def _disk(order: dict[str, Any]) -> dict[str, Any]:
    """How long the same requests take into a file, each with an fsync: what no durable receiver can beat."""
    load, size, spent_s = Load(**order["load"]), 0, 0.0
    requests = _requests(load.spans, load.begun_ns, small=load.small)
    with Path(order["path"]).open("wb", buffering=0) as file:
        for serial in range(load.first, load.first + load.count):
            body = requests.request(serial)
            begun = time.monotonic()
            size += file.write(body)
            os.fsync(file.fileno())
            spent_s += time.monotonic() - begun
    return {"size": size, "seconds": spent_s}


ORDERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"send": _send, "write": _write, "disk": _disk}


def main() -> None:
    """Carry out orders until the input ends."""
    gc.freeze()
    gc.disable()  # a collection would show as latency
    for line in sys.stdin.buffer:
        [(kind, order)] = orjson.loads(line).items()
        sys.stdout.buffer.write(orjson.dumps(ORDERS[kind](order)) + b"\n")
        sys.stdout.buffer.flush()
        gc.collect()


if __name__ == "__main__":
    main()
