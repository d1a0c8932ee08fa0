"""What the collector's bench sends: made up, the same in every run and process but for the time.

Invariants: a request is told by its serial number alone, so that two processes that are given the same numbers (and
`begun_ns`) have the same bytes; no two requests share an id, so that nothing here is ever taken for a resent one. Spans
are encoded once, by the encoder that the sidecar has; each request is a copy with its own ids and times.
"""

import json
import random
import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from tracegrad import names
from tracegrad.otlp_request import export_request
from tracegrad.otlp_span import SPAN_INTERNAL, SPAN_SERVER, Value, encoded_span

SERVICE = "tracegrad.sidecar"
MODEL = "bench-model"
MARKER = "marker-%09x"
"""The name of a marker's first span; all other names here are as long."""
VOCABULARY, PROMPT_TOKENS, RESPONSE_TOKENS = 151_936, 300, 80
DISTINCT = 2048
"""So many spans have texts of their own: more than any compressor looks back on."""
SPANS_PER_ROLLOUT = 10
SPAN_EVERY_NS = 30_000
TAKES_NS = 100_000_000
_HEAD = struct.Struct("<2s16s2s8s2s8s").pack
_TIMES = struct.Struct("<cQcQ").pack
_HEAD_SIZE, _TIMES_SIZE, _ROLLOUT_SIZE = 38, 18, 16


@dataclass(frozen=True)
class Shape:
    """A kind of request. `small`: spans as frameworks write around a call, not calls with their tokens."""

    spans: int
    small: bool = False


@dataclass(frozen=True)
class _Template:
    """A request, and where each of its spans has its ids, its times and, or -1, its rollout's id."""

    body: bytes
    places: tuple[tuple[int, int, int], ...]


class Requests:
    """Requests of one shape. `begun_ns`: when the first span of serial number 0 began."""

    def __init__(self, shape: Shape, begun_ns: int) -> None:
        self.shape = shape
        self._begun_ns = begun_ns
        spans = _small() if shape.small else _calls()
        count = max(1, len(spans) // shape.spans)
        self._templates = [
            _template([spans[(at * shape.spans + place) % len(spans)] for place in range(shape.spans)])
            for at in range(count)
        ]

    def request(self, serial: int, *, marker: bool = False) -> bytes:
        """The encoded request. `marker`: its first span has the name `MARKER % serial`."""
        template = self._templates[serial % len(self._templates)]
        body = bytearray(template.body)
        source = random.Random(serial << 24 | self.shape.spans << 1 | self.shape.small)  # noqa: S311 - no secret
        at_ns = self._begun_ns + serial * self.shape.spans * SPAN_EVERY_NS
        span_ids = source.randbytes(8 * self.shape.spans)
        trace = parent = rollout = b""
        for number, (head, times, rollout_id) in enumerate(template.places):
            if number % SPANS_PER_ROLLOUT == 0:
                trace, parent = source.randbytes(16), source.randbytes(8)
                rollout = trace[:8].hex().encode()
            span_id = span_ids[8 * number : 8 * number + 8]
            ids = _HEAD(b"\x0a\x10", trace, b"\x12\x08", span_id, b"\x22\x08", parent)
            body[head : head + _HEAD_SIZE] = ids
            body[times : times + _TIMES_SIZE] = _TIMES(b"\x39", at_ns, b"\x41", at_ns + TAKES_NS)
            if rollout_id >= 0:
                body[rollout_id : rollout_id + _ROLLOUT_SIZE] = rollout
            at_ns += SPAN_EVERY_NS
        if marker:
            name = template.places[0][0] + _HEAD_SIZE + 2
            body[name : name + len(MARKER % 0)] = (MARKER % serial).encode()
        return bytes(body)


def _template(spans: list[bytes]) -> _Template:
    resource = Resource(attributes=[KeyValue(key="service.name", value=AnyValue(string_value=SERVICE))])
    scope = InstrumentationScope(name=SERVICE, version="1")
    body = export_request(resource.SerializeToString(), scope.SerializeToString(), spans)
    places, at = [], 0
    for span in spans:
        at = body.index(span, at)
        rollout = span.find(_ROLLOUT_KEY)
        # The name stands between ids and kind; all names here are of one length.
        times = _HEAD_SIZE + 2 + len(MARKER % 0) + 2
        places.append((at, at + times, at + rollout + len(_ROLLOUT_KEY) + 4 if rollout >= 0 else -1))
        at += len(span)
    return _Template(body, tuple(places))


_ROLLOUT_KEY = names.ROLLOUT_ID.encode()
_ROLLOUT = "0" * _ROLLOUT_SIZE


class _Text:
    """Words as often as words are in a language: the n-th most frequent one 1/n as often as the first."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        letters = "etaoinshrdlcumwfgypbvk"
        weights = [1 / (place + 2) for place in range(len(letters))]
        self._words = ["".join(source.choices(letters, weights, k=source.randint(2, 9))) for _ in range(6000)]
        self._word_weights = list(accumulate(1 / (place + 3) for place in range(len(self._words))))
        self._ids = range(VOCABULARY)
        self._id_weights = list(accumulate(1 / (place + 50) for place in self._ids))

    def words(self, count: int) -> str:
        """Sentences."""
        words = self._source.choices(self._words, cum_weights=self._word_weights, k=count)
        return " ".join(word + "." if place % 11 == 10 else word for place, word in enumerate(words))

    def ids(self, count: int) -> str:
        """Token ids as compact JSON: in a vocabulary, frequent tokens have low ids."""
        return _json(self._source.choices(self._ids, cum_weights=self._id_weights, k=count))

    def logprobs(self, count: int) -> str:
        """As an engine says them: single precision, written in double."""
        single = struct.Struct(f"<{count}f")
        return _json(single.unpack(single.pack(*(-self._source.expovariate(2) for _ in range(count)))))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


@lru_cache(maxsize=1)
def _calls() -> list[bytes]:
    """Model calls as the sidecar records them, about 6 kB each."""
    source = random.Random("calls")  # noqa: S311 - no secret
    text = _Text(source)
    return [_encoded("chat " + MODEL, SPAN_SERVER, _call(text, source, place)) for place in range(DISTINCT)]


def _call(text: _Text, source: random.Random, place: int) -> dict[str, Value]:
    asked = {"role": "user", "parts": [{"type": "text", "content": text.words(150)}]}
    said = {"role": "assistant", "parts": [{"type": "text", "content": text.words(50)}], "finish_reason": "stop"}
    return {
        names.ROLLOUT_ID: _ROLLOUT,
        names.ROLLOUT_ATTEMPT: 0,
        names.TASK_ID: f"task-{place // (8 * SPANS_PER_ROLLOUT)}",
        names.OPERATION_NAME: "chat",
        names.PROVIDER_NAME: "vllm",
        names.REQUEST_MODEL: MODEL,
        names.AGENT_NAME: source.choice(("writer", "reviewer", "planner")),
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 512,
        names.SAMPLING: '{"temperature":1.0,"top_p":1.0,"top_k":-1,"min_p":0.0}',
        names.INPUT_MESSAGES: _json([asked]),
        names.OUTPUT_MESSAGES: _json([said]),
        names.RESPONSE_ID: "chatcmpl-" + source.randbytes(16).hex(),
        names.RESPONSE_MODEL: MODEL,
        names.FINISH_REASONS: ["stop"],
        names.INPUT_TOKENS: PROMPT_TOKENS,
        names.OUTPUT_TOKENS: RESPONSE_TOKENS,
        "server.address": "127.0.0.1",
        "server.port": 8000,
        "http.response.status_code": 200,
        names.POLICY_NAME: "policy",
        names.CHOICE_INDEX: 0,
        names.PROMPT_TOKEN_IDS: text.ids(PROMPT_TOKENS),
        names.RESPONSE_TOKEN_IDS: text.ids(RESPONSE_TOKENS),
        names.RESPONSE_LOGPROBS: text.logprobs(RESPONSE_TOKENS),
        names.POLICY_VERSION: 3,
        names.TRAINABLE: True,
    }


@lru_cache(maxsize=1)
def _small() -> list[bytes]:
    """Tool calls as frameworks record them, about 500 bytes each."""
    source = random.Random("small")  # noqa: S311 - no secret
    text = _Text(source)
    return [_encoded("execute_tool get", SPAN_INTERNAL, _tool(text, source)) for _ in range(DISTINCT)]


def _tool(text: _Text, source: random.Random) -> dict[str, Value]:
    return {
        names.OPERATION_NAME: "execute_tool",
        "gen_ai.tool.name": source.choice(("read_table", "set_valve", "search")),
        "gen_ai.tool.call.id": "call_" + source.randbytes(12).hex(),
        "gen_ai.tool.call.arguments": _json({"query": text.words(8), "limit": source.randint(1, 50)}),
        "gen_ai.tool.call.result": text.words(18),
        "thread.id": source.randint(1, 1 << 40),
        "code.function.name": "tools.call",
    }


def _encoded(name: str, kind: int, values: dict[str, Value]) -> bytes:
    return encoded_span(
        name,
        bytes(16),
        bytes(8),
        parent_span_id=bytes(8),
        kind=kind,
        start_ns=0,
        end_ns=0,
        values=values,
        error=None,
    )
