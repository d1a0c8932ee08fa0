"""`/v1/completions`."""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from sidecar.chat import OpenAIErrors
from sidecar.chat_answer import Answer, objects
from sidecar.chat_request import Hidden
from sidecar.completions.answer import hide, read_answer
from sidecar.completions.request import PASSING, Asked, as_chat, capture_fields
from sidecar.completions.stream import CompletionsReader, CompletionsStream
from sidecar.dialect import Caller, Exchange, Json, Native, NativeStream, StreamReader


class CompletionsNative:
    """Completions as vLLM speaks them."""

    path = "/v1/completions"

    def capture_fields(self, body: Mapping[str, Any]) -> tuple[Json, Hidden]:
        """Ask for token ids, log-probs and usage where the client did not and its answer stays the same."""
        return capture_fields(body)

    def read(self, raw: bytes, hidden: Hidden) -> tuple[Answer, bytes]:
        """The answer, and its bytes without what is hidden. Raises ValueError where it is no JSON object."""
        body = orjson.loads(raw)
        if not isinstance(body, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - as for what is no JSON at all
        answer = read_answer(body, _asked(hidden))
        if not (hidden.token_ids or hidden.logprobs):
            return answer, raw
        hid = [hide(choice, hidden) for choice in objects(body.get("choices"))]
        if not any(hid):
            return answer, raw
        # vLLM writes whole answers so: the log-probs that a client asked for stay the same to the last digit.
        return answer, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    def stream(self, hidden: Hidden) -> NativeStream:
        """A reader for one stream."""
        return CompletionsStream(_asked(hidden))


def _asked(hidden: Hidden) -> Asked:
    return hidden if isinstance(hidden, Asked) else Asked(hidden.token_ids, hidden.logprobs, hidden.usage)


class CompletionsDialect(OpenAIErrors):
    """Text completions: a policy's are captured, a provider's pass."""

    operation = "text_completion"
    native: Native | None = CompletionsNative()

    async def open(self, body: Json, caller: Caller) -> Exchange | None:
        """Nothing to translate."""
        return None

    def as_chat(self, body: Json) -> Json:
        """The request in chat completions' names."""
        return as_chat(body)

    def read(self, answer: Json) -> Answer:
        """What a `text_completion` says."""
        return read_answer(answer, PASSING)

    def reader(self) -> StreamReader:
        """A reader for a stream that passes through."""
        return CompletionsReader(PASSING)

    def system(self, body: Json) -> str:
        """A text completion has no system prompt."""
        return ""

    def replace_system(self, body: Json, text: str) -> Json:
        """The request as it is: there is no place for a system prompt."""
        return body
