"""What the sidecar's bench sends and what its stand-in vLLM answers: made up, the same in every run and process.

A request of 6.7 kB: five messages and two tools. An answer of 30 kB: 1,500 prompt ids, 200 sampled ids with their
log-probs. Streamed: 202 events, 78 kB. The *turns* of a rollout grow: each prompt is the one before, what was answered
to it, and `TOOL_TOKENS` more.
"""

import random
from dataclasses import dataclass
from typing import Any

import orjson

MODEL = "bench-model"
PROMPT_TOKENS, RESPONSE_TOKENS, TOOL_TOKENS = 1500, 200, 300
VOCABULARY = 151_936
END = VOCABULARY - 1
"""The token that ends an answer, and stands nowhere else."""
TURN = "turn-"
"""A request whose `user` is this and a number is answered as that turn of a rollout."""
LONGEST = 64
"""Turns."""
DONE = b"data: [DONE]\n\n"

_WORDS = [
    "valve",
    "pressure",
    "of",
    "seven",
    "pumps",
    "reports",
    "minute",
    "while",
    "old",
    "logs",
    "are",
    "rotated",
    "night",
]
_WORDS += ["shift", "compares", "both", "charts", "before", "any", "change", "to", "the", "plant", "goes", "out"]

Json = dict[str, Any]


def _text(source: random.Random, length: int) -> str:
    words: list[str] = []
    while sum(map(len, words)) + len(words) < length:
        words.append(source.choice(_WORDS))
    return " ".join(words)[:length]


def _tool(name: str, description: str, **properties: Json) -> Json:
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def request(*, model: str = MODEL, stream: bool = False, turn: int | None = None) -> bytes:
    """The body of a call; of one turn of a rollout where `turn` is given."""
    source = random.Random("request")  # noqa: S311 - no secret
    arguments = '{"file": "plant/valves.csv"}'
    asked = {"id": "call_0", "type": "function", "function": {"name": "read_table", "arguments": arguments}}
    messages: list[Json] = [
        {"role": "system", "content": _text(source, 1500)},
        {"role": "user", "content": _text(source, 1200)},
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "call_0", "content": _text(source, 2200).replace(" of ", '\n\t"')},
        {"role": "user", "content": _text(source, 900) + " ü ☂"},
    ]
    for place in range(turn or 0):
        messages += ({"role": "assistant", "content": answer_text()}, {"role": "user", "content": _text(source, 900)})
        messages[-1]["content"] += f" {place}"
    body = {
        "model": model,
        "messages": messages,
        "tools": [
            _tool(
                "read_table",
                "Reads some rows of a table on the plant's disk.",
                file={"type": "string", "description": "where the table is"},
                first={"type": "integer"},
                last={"type": "integer"},
            ),
            _tool(
                "set_valve",
                "Opens or closes one valve and says what it was before.",
                valve={"type": "string"},
                opening={"type": "number", "default": 0.5},
            ),
        ],
        "temperature": 1.0,
        "max_tokens": 512,
        "tool_choice": "auto",
    }
    if turn is not None:
        body["user"] = f"{TURN}{turn}"
    if stream:
        body["stream"] = True
    return orjson.dumps(body)


@dataclass(frozen=True)
class _Sampled:
    """Everything that was ever sampled here."""

    tokens: tuple[str, ...]
    logprobs: tuple[Json, ...]
    ids: tuple[int, ...]
    """Of the longest rollout: prompts and answers, one after another."""


def _sampled() -> _Sampled:
    source = random.Random("answer")  # noqa: S311 - no secret
    tokens = tuple(
        " ü" if place % 40 == 39 else f" {source.choice(_WORDS)[:3].ljust(3, 's')}" for place in range(RESPONSE_TOKENS)
    )
    logprobs = tuple(
        {"token": token, "logprob": -abs(source.gauss(0, 1.3)), "bytes": list(token.encode()), "top_logprobs": []}
        for token in tokens
    )
    ids = [source.randrange(END) for _ in range(_begin(LONGEST))]
    for turn in range(LONGEST):
        ids[_begin(turn) + RESPONSE_TOKENS - 1] = END
    return _Sampled(tokens, logprobs, tuple(ids))


def _begin(turn: int) -> int:
    """How long the prompt of a turn is."""
    return PROMPT_TOKENS + turn * (RESPONSE_TOKENS + TOOL_TOKENS)


_SAMPLED = _sampled()
OPENING = orjson.dumps(_text(random.Random("request"), 100))[1:-1]  # noqa: S311 - no secret
"""What every conversation here begins with, as JSON text."""


def prompt_ids(turn: int, *, changed: bool = False) -> list[int]:
    """What the engine is prompted with; `changed`: as if the last answer had ended in other words."""
    ids = list(_SAMPLED.ids[: _begin(turn)])
    if changed:
        place = _begin(turn - 1) + RESPONSE_TOKENS - 2
        ids[place] = (ids[place] + 1) % END
    return ids


def _head(kind: str) -> Json:
    return {"id": "chatcmpl-" + "b3" * 16, "object": kind, "created": 1_790_000_000, "model": MODEL}


def _usage(prompt: int, response: int) -> Json:
    total = prompt + response
    counts = {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": response}
    return counts | {"prompt_tokens_details": None}


def answer_text() -> str:
    """What the model says, always."""
    return "".join(_SAMPLED.tokens)


def answer(turn: int = 0) -> bytes:
    """A whole chat completion as vLLM gives it to who asks for ids and log-probs."""
    begin = _begin(turn)
    message = {"role": "assistant", "content": answer_text(), "refusal": None, "annotations": None, "audio": None}
    choice = {
        "index": 0,
        "message": message | {"function_call": None, "tool_calls": [], "reasoning": None},
        "logprobs": {"content": _SAMPLED.logprobs},
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": _SAMPLED.ids[begin : begin + RESPONSE_TOKENS],
    }
    return orjson.dumps(
        {
            **_head("chat.completion"),
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": _usage(begin, RESPONSE_TOKENS),
            "prompt_logprobs": None,
            "prompt_token_ids": prompt_ids(turn),
            "kv_transfer_params": None,
        }
    )


@dataclass(frozen=True)
class Streamed:
    """The same answer as server-sent events; `usage` is the one that comes before the end where it was asked for."""

    events: tuple[bytes, ...]
    usage: bytes


def streamed(n_tokens: int = RESPONSE_TOKENS) -> Streamed:
    """Of the answer's first tokens: one event with the role and the prompt ids, one for each token, and the end."""
    last = n_tokens - 1
    events = [_event([_delta({"role": "assistant", "content": ""})], prompt_token_ids=_SAMPLED.ids[:PROMPT_TOKENS])]
    for place in range(n_tokens):
        sampled = {"content": [_SAMPLED.logprobs[place]]}
        ids, ended = [_SAMPLED.ids[PROMPT_TOKENS + place]], "stop" if place == last else None
        events.append(_event([_delta({"content": _SAMPLED.tokens[place]}, sampled, ended, ids)]))
    return Streamed((*events, DONE), _event([], usage=_usage(PROMPT_TOKENS, n_tokens)))


def _delta(delta: Json, logprobs: Json | None = None, ended: str | None = None, ids: list[int] | None = None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": ended, "token_ids": ids}


def _event(choices: list[Json], **more: Any) -> bytes:
    return b"data: " + orjson.dumps({**_head("chat.completion.chunk"), "choices": choices, **more}) + b"\n\n"
