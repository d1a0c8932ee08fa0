"""A closed-loop load generator, as a process: `python -m tracegrad.bench.load`, a `Load` as JSON in, a `Seen` out.

Each of `concurrency` connections sends its next request when the answer to the one before has ended. A latency runs
from before the request is sent until the last byte of its answer is there. Invariant: an answer costs as little as
Python allows (one read, a glance at its head), since the stand-in shares the core; every 101st is looked at whole.
"""

import gc
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import orjson

from tracegrad.bench import payload
from tracegrad.bench.load_requests import Rollouts, anonymous

STALLED_S = 60.0
MOST_ERRORS = 50
BUFFER_BYTES = 1 << 20
INSPECT_EVERY = 101
LEAK, LEAK_SPACED = b'token_ids":[', b'token_ids": ['
"""vLLM says null to who did not ask."""
ENDED = b"0\r\n\r\n"
"""What a chunked answer ends with. In the middle of one of ours it stands nowhere: JSON has no line ends."""


@dataclass(frozen=True)
class Load:
    """What to send. It ends after `calls`, or where that is 0 after `seconds`; `warm` calls before are not counted."""

    port: int
    path: str = "/v1/chat/completions"
    model: str = payload.MODEL
    stream: bool = False
    concurrency: int = 1
    seconds: float = 0.0
    calls: int = 0
    warm: int = 0
    turns: int = 0
    """Of the rollouts whose calls these are; 0: calls that nothing connects."""


@dataclass
class Seen:
    """What came back. Times in ms; those of the first event, and the events, only of streams."""

    calls: int = 0
    """Measured, that is without the warm-up."""
    all_calls: int = 0
    errors: int = 0
    """Answers that broke off, or had a status other than 200."""
    first_error: str = ""
    seconds: float = 0.0
    per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    first_p50_ms: float = 0.0
    first_p99_ms: float = 0.0
    events: int = 0
    events_per_s: float = 0.0
    fewest_events: int = 0
    unended: int = 0
    """Streams without [DONE]."""
    inspected: int = 0
    leaks: int = 0
    """Answers among the inspected that showed token ids, which nobody asked for."""
    bytes_per_call: float = 0.0
    cpu_s: float = 0.0
    """Of the generator."""


class _Connection:
    """One place of the closed loop. `left`: bytes that are to come; None while unknown, -1 where chunks tell."""

    __slots__ = (
        *("chunked", "closes", "first", "keeps", "left", "pieces", "received", "requests", "sock", "started", "status"),
    )

    def __init__(self, requests: Iterator[bytes]) -> None:
        self.requests = requests
        self.sock: socket.socket
        self.begin()

    def begin(self) -> None:
        self.left: int | None = None
        self.chunked = self.closes = self.keeps = False
        self.pieces: list[bytes] = []
        """The answer, where it is kept: that of a stream, in chunks, or to be inspected."""
        self.status = b""
        self.started = self.first = 0.0
        self.received = 0


class Generator:
    """Runs one load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._rollouts = Rollouts(load.path, load.port, model=load.model, turns=load.turns)
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._selector = selectors.DefaultSelector()
        self._seen = Seen()
        self._latencies: list[float] = []
        self._firsts: list[float] = []
        self._bytes = 0
        self._sent = self._in_flight = 0
        self._began = self._deadline = 0.0

    def run(self) -> Seen:
        """Send everything. Raises OSError where nobody listens."""
        self._start_clock()
        for _ in range(self._load.concurrency):
            one = _Connection(self._requests())
            self._dial(one)
            self._send(one)
        last = self._began
        while self._in_flight:
            ready = self._selector.select(STALLED_S)
            if not ready:
                self._seen.errors += self._in_flight
                self._seen.first_error = self._seen.first_error or f"no answer for {STALLED_S:.0f} s"
                break
            for key, _ in ready:
                self._read(key.data)
            if self._seen.errors > MOST_ERRORS:
                break
            last = time.perf_counter()
        return self._result(last)

    def _requests(self) -> Iterator[bytes]:
        load = self._load
        if load.turns:
            return self._rollouts.play()
        return anonymous(load.path, load.port, model=load.model, stream=load.stream)

    def _start_clock(self) -> None:
        self._began = time.perf_counter()
        self._deadline = self._began + self._load.seconds

    def _dial(self, one: _Connection) -> None:
        one.sock = socket.create_connection(("127.0.0.1", self._load.port), timeout=STALLED_S)
        one.sock.settimeout(None)
        one.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(one.sock, selectors.EVENT_READ, one)

    def _dial_again(self, one: _Connection) -> None:
        self._selector.unregister(one.sock)
        one.sock.close()
        self._dial(one)

    def _send(self, one: _Connection) -> None:
        load = self._load
        if self._sent >= load.warm + load.calls if load.calls else self._is_over():
            return
        one.begin()
        one.keeps = load.stream or self._sent % INSPECT_EVERY == 0
        self._sent += 1
        self._in_flight += 1
        request = next(one.requests)
        one.started = time.perf_counter()
        try:
            one.sock.sendall(request)
        except OSError:  # closed while it was idle
            self._dial_again(one)
            one.started = time.perf_counter()
            one.sock.sendall(request)

    def _is_over(self) -> bool:
        return self._seen.all_calls >= self._load.warm and time.perf_counter() >= self._deadline

    def _read(self, one: _Connection) -> None:
        try:
            n = one.sock.recv_into(self._buffer)
        except OSError:
            n = 0
        if not n:
            self._broken_off(one)
            return
        one.received += n
        if one.left is None:
            self._read_head(one, n)
        elif not one.chunked:
            one.left -= n
        if one.keeps or one.chunked:
            one.pieces.append(bytes(self._view[:n]))
            if not one.first and b"data: " in one.pieces[-1]:
                one.first = time.perf_counter()
        if self._has_ended(one, n):
            self._finish(one)

    def _read_head(self, one: _Connection, n: int) -> None:
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", 0, n)
        if end < 0:
            raise ValueError("an answer whose head comes in pieces: not expected on loopback")
        head = bytes(buffer[:end]).lower()
        one.status = head[9:12]
        one.closes = b"\r\nconnection: close" in head
        at = head.find(b"\r\ncontent-length:")
        if at < 0:
            one.left, one.chunked = -1, True
            return
        stop = head.find(b"\r\n", at + 2)
        one.left = int(head[at + 17 : stop if stop > 0 else None]) - (n - end - 4)

    def _has_ended(self, one: _Connection, n: int) -> bool:
        if not one.chunked:
            return one.left == 0
        if n >= len(ENDED):
            return self._buffer[n - len(ENDED) : n] == ENDED
        return b"".join(one.pieces[-2:]).endswith(ENDED)

    def _broken_off(self, one: _Connection) -> None:
        self._selector.unregister(one.sock)
        one.sock.close()
        if one.started:
            self._in_flight -= 1
            self._failed("the connection was closed in the middle of an answer")
            self._dial(one)
            self._send(one)

    def _failed(self, why: str) -> None:
        self._seen.errors += 1
        self._seen.first_error = self._seen.first_error or why

    def _finish(self, one: _Connection) -> None:
        now, seen = time.perf_counter(), self._seen
        seen.all_calls += 1
        self._in_flight -= 1
        if one.status != b"200":
            self._failed(f"status {one.status.decode()}: {bytes(self._buffer[:400])!r}")
        if seen.all_calls > self._load.warm:
            self._latencies.append(now - one.started)
            self._bytes += one.received
        elif seen.all_calls == self._load.warm:
            self._start_clock()
        if one.pieces:
            self._inspect(one, measured=seen.all_calls > self._load.warm)
        one.started = 0.0
        if one.closes:
            self._dial_again(one)
        self._send(one)

    def _inspect(self, one: _Connection, *, measured: bool) -> None:
        seen, whole = self._seen, b"".join(one.pieces)
        seen.inspected += 1
        seen.leaks += LEAK in whole or LEAK_SPACED in whole
        if self._load.stream and measured:
            events = whole.count(b"data: ")
            seen.fewest_events = min(seen.fewest_events or events, events)
            seen.events += events
            seen.unended += payload.DONE not in whole
            self._firsts.append(one.first - one.started)

    def _result(self, last: float) -> Seen:
        seen = self._seen
        seen.calls = len(self._latencies)
        seen.seconds = last - self._began
        if seen.calls and seen.seconds > 0:
            seen.per_s, seen.events_per_s = seen.calls / seen.seconds, seen.events / seen.seconds
            seen.bytes_per_call = self._bytes / seen.calls
        seen.p50_ms, seen.p99_ms = _percentiles(self._latencies)
        seen.first_p50_ms, seen.first_p99_ms = _percentiles(self._firsts)
        return seen


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile, in ms; 0 without any."""
    ordered = sorted(seconds)
    if not ordered:
        return 0.0, 0.0
    half, most = (ordered[round(share * (len(ordered) - 1))] * 1e3 for share in (0.5, 0.99))
    return half, most


def main() -> None:
    """Read a load from standard input, run it, and write what was seen."""
    load = Load(**orjson.loads(sys.stdin.buffer.read()))
    generator = Generator(load)
    gc.freeze()
    gc.disable()  # nothing here is a cycle, and a collection would show as latency
    begun = time.process_time()
    seen = generator.run()
    seen.cpu_s = time.process_time() - begun
    sys.stdout.buffer.write(orjson.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
