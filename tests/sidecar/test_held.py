"""Several choices of one stream end at different times: the order of chunks is the engine's."""

import json
from typing import Any

import pytest

from sidecar.chat import CHAT
from sidecar.chat_request import Hidden
from sidecar.dialect import NativeStream
from sidecar.sse import EventReader

HIDDEN = Hidden(token_ids=True, logprobs=True, usage=True)


def chunk(index: int, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": f"{index}"}, "logprobs": None, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}


USAGE = {"id": "c", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}}
CHUNKS = [chunk(0), chunk(1), chunk(0, "stop"), chunk(1), chunk(1, "stop")]


def written(stream: NativeStream, chunks: list[dict[str, Any]]) -> list[Any]:
    raw = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks)
    got = b"".join(stream.pass_on(event) for event in EventReader().feed(raw)) + stream.flush()
    return [json.loads(event.data or b"") for event in EventReader().feed(got)]


@pytest.mark.parametrize("fingerprint", ["vllm-1", None])
def test_once_the_engines_fingerprint_is_known_nothing_waits(fingerprint: str | None) -> None:
    mark = {} if fingerprint is None else {"system_fingerprint": fingerprint}
    alone = [one | (mark if one["choices"][0]["finish_reason"] else {}) for one in CHUNKS]
    first, second = CHAT.stream(HIDDEN), CHAT.stream(HIDDEN)
    waited = written(first, [*CHUNKS, USAGE | mark])
    assert sorted(map(str, waited)) == sorted(map(str, alone))
    assert waited[-2:] == [alone[2], alone[4]]
    second.held.mark = first.held.mark
    assert written(second, [*CHUNKS, USAGE | mark]) == alone


def test_a_chunk_with_choices_and_usage_does_not_overtake() -> None:
    chunks = [chunk(0), chunk(0, "stop"), chunk(0) | {"usage": {"prompt_tokens": 1}}]
    assert written(CHAT.stream(HIDDEN), chunks) == chunks


@pytest.mark.parametrize(
    ("delta", "sampled", "shown"),
    [
        ({}, {"token_ids": [5], "logprobs": {"content": [{"logprob": -0.5}]}}, False),
        ({}, {"token_ids": [], "logprobs": None}, False),
        ({}, {"token_ids": None, "logprobs": None}, True),
        ({"content": ""}, {"token_ids": [5], "logprobs": {"content": [{"logprob": -0.5}]}}, True),
        ({"content": None}, {"token_ids": [5], "logprobs": {"content": [{"logprob": -0.5}]}}, True),
    ],
)
def test_a_chunk_that_only_brings_tokens_is_not_shown(
    delta: dict[str, Any], sampled: dict[str, Any], shown: bool
) -> None:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}
    bare = {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}
    brought = bare | {"choices": [choice | sampled]}
    assert written(CHAT.stream(HIDDEN), [chunk(0), brought]) == [chunk(0)] + [bare] * shown
