"""How the stand-in's engine writes conversations as ids: what exact continuation asks it for (`/tokenize`).

Append-only: each message once, and an end after it. Those of the bench's own rollouts are the ids that `payload`
prompts with, encoded before anybody asks; any other is written word by word.
"""

import zlib
from typing import Any

import orjson

from tracegrad.bench import payload

MAX_MODEL_LEN = 1 << 20
ROLES = {"system": 1, "user": 2, "assistant": 3, "tool": 4}

_ANSWER = b'"role":"assistant"'
_SAID = orjson.dumps(payload.answer_text())[1:]
"""What an answer ends with, as long as nobody has put something behind it."""

Json = dict[str, Any]


class Tokenizer:
    """Answers `/tokenize`."""

    def __init__(self) -> None:
        self._turns: dict[tuple[int, bool], bytes] = {}

    def answer(self, body: bytes) -> bytes:
        """The answer to a request."""
        if payload.OPENING not in body:
            return _answer(written(orjson.loads(body)))
        turn = body.count(_ANSWER) - 1
        asked = turn, body.count(_SAID) < turn
        if asked not in self._turns:
            self._turns[asked] = _answer(payload.prompt_ids(turn, changed=asked[1]))
        return self._turns[asked]


def _answer(ids: list[int]) -> bytes:
    return orjson.dumps({"count": len(ids), "max_model_len": MAX_MODEL_LEN, "tokens": ids})


def written(body: Json) -> list[int]:
    """The ids of a request's messages, and the beginning of the next answer."""
    ids = _words(orjson.dumps(body.get("tools")).decode())
    for message in body["messages"]:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        said = [message.get("reasoning"), message.get("content"), *(one[name] for one in calls for name in one)]
        ids += [ROLES[message["role"]], *_words(" ".join(filter(None, said))), payload.END]
    return [*ids, ROLES["assistant"]]


def _words(text: str) -> list[int]:
    return [len(ROLES) + 1 + zlib.crc32(word.encode()) % (payload.END - len(ROLES) - 1) for word in text.split()]
