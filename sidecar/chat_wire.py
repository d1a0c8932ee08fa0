"""The short road for what an engine sends: only what the record needs is parsed, and what is hidden is cut out as text.

Parsing 200 entries of log-probs into objects costs more than the rest of a call. So the numbers stay text: token ids as
they came, log-probs picked out by pattern. Everything here either is certain of what it read or returns None, and the
long road (`chat_answer.read_answer`, `chat_stream.hide`) reads the same bytes as whole JSON.

A pattern such as `"logprob":` cannot come from a text: within a JSON string a quote is escaped, so the colon after a
quote says that a key ended there.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from sidecar.chat_answer import Answer, Choice, Numbers

NULL = b"null"
_LOGPROB = re.compile(rb'"logprob":(-?[0-9][0-9.eE+-]*)')
_DIGITS = b"0123456789,"


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Choice(msgspec.Struct):
    message: dict[str, Any]
    index: int
    finish_reason: str | None = None
    token_ids: msgspec.Raw = msgspec.Raw(NULL)
    logprobs: msgspec.Raw = msgspec.Raw(NULL)


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    id: str | None = None
    model: str | None = None
    usage: _Usage | None = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw(NULL)


class _Delta(msgspec.Struct):
    delta: dict[str, Any]
    index: int
    finish_reason: str | None = None
    token_ids: msgspec.Raw = msgspec.Raw(NULL)
    logprobs: msgspec.Raw = msgspec.Raw(NULL)


class _Chunk(msgspec.Struct):
    choices: list[_Delta]
    error: msgspec.Raw = msgspec.Raw(NULL)
    prompt_token_ids: msgspec.Raw = msgspec.Raw(NULL)


class Piece(msgspec.Struct, frozen=True):
    """A chunk in the middle of a stream: some tokens of one choice. `shown`: its text without ids and log-probs."""

    index: int
    delta: Mapping[str, Any]
    token_ids: list[int]
    logprobs: list[float]
    shown: bytes


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def read_whole(raw: bytes) -> tuple[Answer, bytes] | None:
    """A whole answer, and its bytes with token ids and log-probs null. None where the long road must decide."""
    try:
        wire = _decode_answer(raw)
    except msgspec.MsgspecError:
        return None
    prompt = id_text(bytes(wire.prompt_token_ids))
    if prompt is None:
        return None
    choices = []
    cuts = Cuts(raw)
    for one in wire.choices:
        ids_raw, logprobs_raw = bytes(one.token_ids), bytes(one.logprobs)
        ids, logprobs = id_text(ids_raw), _LOGPROB.findall(logprobs_raw)
        if ids is None or len(logprobs) != ids.count:
            return None
        numbers = Numbers("[" + b",".join(logprobs).decode() + "]", len(logprobs))
        choices.append(Choice(one.index, one.message, one.finish_reason, ids, numbers))
        cuts.cut(b'"logprobs":', logprobs_raw)
        cuts.cut(b'"token_ids":', ids_raw)
    cuts.cut_last(b'"prompt_token_ids":', bytes(wire.prompt_token_ids))
    shown = cuts.rest()
    if shown is None:
        return None
    usage = wire.usage or _Usage()
    return (
        Answer(wire.id, wire.model, tuple(choices), prompt, usage.prompt_tokens, usage.completion_tokens),
        shown,
    )


def read_piece(data: bytes) -> Piece | None:
    """A chunk that only brings tokens. None for any other: the first, the last, errors, usage, several choices."""
    try:
        chunk = _decode_chunk(data)
    except msgspec.MsgspecError:
        return None
    if len(chunk.choices) != 1 or b'"usage"' in data:
        return None
    choice = chunk.choices[0]
    if choice.finish_reason is not None or bytes(chunk.prompt_token_ids) != NULL or bytes(chunk.error) != NULL:
        return None
    ids, logprobs = bytes(choice.token_ids), bytes(choice.logprobs)
    found = _LOGPROB.findall(logprobs)
    sampled = orjson.loads(ids)
    if id_text(ids) is None or len(found) != len(sampled):
        return None
    shown = data.replace(b'"logprobs":' + logprobs, b'"logprobs":null', 1)
    shown = shown.replace(b'"token_ids":' + ids, b'"token_ids":null', 1)
    if len(shown) != len(data) - len(ids) - len(logprobs) + 2 * len(NULL):
        return None
    return Piece(choice.index, choice.delta, sampled, [float(one) for one in found], shown)


def id_text(raw: bytes) -> Numbers | None:
    """A compact list of whole numbers, one at least. None for anything else."""
    if raw.translate(None, _DIGITS) != b"[]" or raw == b"[]":
        return None
    return Numbers(raw.decode(), raw.count(b",") + 1)


class Cuts:
    """Takes values out of JSON text by their place, leaving null. Sure of itself, or `rest` is None."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._spans: list[tuple[int, int]] = []
        self._next: dict[bytes, int] = {}
        self._failed = False

    def cut(self, key: bytes, value: bytes) -> None:
        """The value after the next `key`."""
        self._cut(self._raw.find(key, self._next.get(key, 0)), key, value)

    def cut_last(self, key: bytes, value: bytes) -> None:
        """The value after the last `key`: found sooner where it stands at the end."""
        self._cut(self._raw.rfind(key), key, value)

    def _cut(self, found: int, key: bytes, value: bytes) -> None:
        begin = found + len(key)
        end = begin + len(value)
        if found < 0 or not self._raw.startswith(value, begin):
            self._failed = True
        self._next[key] = end
        self._spans.append((begin, end))

    def rest(self) -> bytes | None:
        """The text with null for what was cut. None where a key did not stand where it should."""
        if self._failed:
            return None
        pieces, last = [], 0
        for begin, end in sorted(self._spans):
            pieces += [self._raw[last:begin], NULL]
            last = end
        pieces.append(self._raw[last:])
        return b"".join(pieces)
