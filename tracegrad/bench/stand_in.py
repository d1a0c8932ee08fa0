"""A stand-in for vLLM and for the collector, as a process: `python -m tracegrad.bench.stand_in` prints its port.

Invariant: an answer costs as little as Python allows (it is encoded before anybody asks, and requests are hardly
looked at), since it shares its core with the load generator and must never be what a phase waits for.

    POST /v1/chat/completions  the answer of `payload`: whole, streamed, or that of a turn
    POST /rollout/ID/v1/...    the same
    POST /tokenize             a conversation's ids
    POST /v1/traces            an OTLP export: counted
    GET  /weight_info          version 1
    GET  /bench/stats          what was counted
    POST /bench/pace           {"delay_s", "tokens"}: between two events of a stream, and how many it has
"""

import asyncio
import gc
import sys
import time
from dataclasses import asdict, dataclass
from typing import cast

import orjson
import uvloop

from tracegrad.bench import otlp_spans, payload
from tracegrad.bench.toy_template import Tokenizer

READ_HEAD = b"\r\n\r\n"
MODELS = {"object": "list", "data": [{"id": payload.MODEL, "object": "model", "owned_by": "bench"}]}
GETS: dict[bytes, object] = {
    b"/health": {},
    b"/weight_info": {"weight_version": "1"},
    b"/is_paused": {"is_paused": False},
    b"/server_info": {"vllm_config": {"model_config": {"logprobs_mode": "raw_logprobs"}}},
    b"/v1/models": MODELS,
}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


@dataclass
class Counts:
    """What came in so far."""

    calls: int = 0
    streams: int = 0
    asked_token_ids: int = 0
    """Calls that asked for ids and log-probs."""
    given_token_ids: int = 0
    """Calls whose prompt was given as ids."""
    exports: int = 0
    export_bytes: int = 0
    spans: int = 0
    cpu_s: float = 0.0
    """Of this process."""


class StandIn:
    """What all connections share."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.answer = _response(payload.answer())
        self.turns: dict[bytes, bytes] = {}
        self.tokenizer = Tokenizer()
        self.pace(0.0, payload.RESPONSE_TOKENS)

    def pace(self, delay_s: float, tokens: int) -> None:
        """How streams go from now on."""
        self.delay_s = delay_s
        made = payload.streamed(tokens)
        *events, done = map(_chunk, made.events)
        self.events = (*events, done + END)
        self.events_with_usage = (*events, _chunk(made.usage) + done + END)

    def turn(self, body: bytes) -> bytes | None:
        """The answer to a turn of a rollout; None where the request is none."""
        at = body.find(b'"user":"' + payload.TURN.encode())
        if at < 0:
            return None
        name = body[at + 8 : body.index(b'"', at + 8)]
        if name not in self.turns:
            self.turns[name] = _response(payload.answer(int(name.removeprefix(payload.TURN.encode()))))
        return self.turns[name]

    def stats(self) -> bytes:
        """The counts as JSON."""
        self.counts.cpu_s = time.process_time()
        return orjson.dumps(asdict(self.counts))


def _response(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


class Connection(asyncio.Protocol):
    """One that is open: requests with a content-length, one after another."""

    def __init__(self, stand_in: StandIn) -> None:
        self._all = stand_in
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._needed = 0
        """So many bytes must be there before another look is worth it."""
        self._events: tuple[bytes, ...] = ()
        self._next = 0
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, mostly all of it."""
        received = self._received
        received += data
        while received and len(received) >= self._needed:
            head_end = received.find(READ_HEAD)
            if head_end < 0:
                self._needed = len(received) + 1
                return
            head = bytes(received[:head_end])
            begin = head_end + 4
            self._needed = begin + _length(head)
            if len(received) < self._needed:
                return
            body = bytes(received[begin : self._needed])
            del received[: self._needed]
            self._needed = 0
            self._serve(head, body)

    def _serve(self, head: bytes, body: bytes) -> None:
        stand_in, counts = self._all, self._all.counts
        line = head[: head.find(b"\r\n")]
        if line.startswith(b"POST /") and line.endswith(b"/v1/chat/completions HTTP/1.1"):
            counts.given_token_ids += b'"prompt_token_ids":[' in body
            counts.asked_token_ids += b'"return_token_ids":' in body and b'"logprobs":' in body
            if b'"stream":true' in body or b'"stream": true' in body:
                counts.streams += 1
                with_usage = b'"include_usage":true' in body or b'"include_usage": true' in body
                self._stream(stand_in.events_with_usage if with_usage else stand_in.events)
                return
            counts.calls += 1
            self._transport.write(stand_in.turn(body) or stand_in.answer)
        elif line.startswith(b"POST /tokenize "):
            self._transport.write(_response(stand_in.tokenizer.answer(body)))
        elif line.startswith(b"POST /v1/traces"):
            counts.exports += 1
            counts.export_bytes += len(body)
            counts.spans += otlp_spans.count(body)
            self._transport.write(_response(b"", kind="application/x-protobuf"))
        else:
            self._transport.write(self._rest(head, body))

    def _rest(self, head: bytes, body: bytes) -> bytes:
        method, target, _ = head.split(b" ", 2)
        path = target.partition(b"?")[0]
        if path == b"/bench/stats":
            return _response(self._all.stats())
        if path == b"/bench/pace":
            self._all.pace(**orjson.loads(body))
            return _response(b"{}")
        if method != b"GET" or path not in GETS:
            return _response(b"{}", "404 Not Found")
        return _response(orjson.dumps(GETS[path]))

    def _stream(self, events: tuple[bytes, ...]) -> None:
        self._events, self._next = events, 0
        self._due = self._loop.time()
        self._transport.write(STREAM_HEAD)
        self._step()

    def _step(self) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._events[self._next])
        self._next += 1
        if self._next == len(self._events):
            return
        if delay_s := self._all.delay_s:
            self._due += delay_s
            self._loop.call_at(self._due, self._step)
        else:
            self._loop.call_soon(self._step)


def _length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    if at < 0:
        if b"\r\ntransfer-encoding:" in lower:
            raise ValueError("requests must have a content-length here")
        return 0
    end = lower.find(b"\r\n", at + 2)
    return int(lower[at + 17 : end if end > 0 else None])


async def _serve() -> None:
    stand_in = StandIn()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(stand_in), "127.0.0.1", 0, backlog=1024)
    gc.freeze()
    gc.disable()  # nothing here is a cycle, and a collection would show as latency
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
