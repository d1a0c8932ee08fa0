"""Chat completions: the API that a policy's engine speaks itself, and the one that the record is kept in."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from sidecar.chat_answer import Answer, objects, read_answer, text
from sidecar.chat_request import Hidden, capture_fields
from sidecar.chat_stream import ChatStream, hide
from sidecar.chat_wire import read_whole
from sidecar.dialect import Caller, Exchange, Json, Native, NativeStream, Refusal, StreamReader
from sidecar.openai_error import error_body, openai_error
from sidecar.sse import Event

SYSTEM_ROLES = ("system", "developer")


class ChatNative:
    """Chat completions as vLLM speaks them."""

    path = "/v1/chat/completions"

    def capture_fields(self, body: Mapping[str, Any]) -> tuple[Json, Hidden]:
        """Ask for token ids, log-probs and usage where the client did not."""
        return capture_fields(body)

    def read(self, raw: bytes, hidden: Hidden) -> tuple[Answer, bytes]:
        """The answer, and its bytes without what is hidden. Raises ValueError where it is no JSON object."""
        if hidden.token_ids and hidden.logprobs and (found := read_whole(raw)) is not None:
            return found
        body = orjson.loads(raw)
        if not isinstance(body, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - as for what is no JSON at all
        answer = read_answer(body)
        if hidden.nothing:
            return answer, raw
        if not hide(body, hidden):
            return answer, raw
        # vLLM writes whole answers so: the log-probs that a client asked for stay the same to the last digit.
        return answer, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    def stream(self, hidden: Hidden) -> NativeStream:
        """A reader for one stream."""
        return ChatStream(hidden)


CHAT = ChatNative()


class ChatReader:
    """Reads a chat stream that passes through."""

    def __init__(self) -> None:
        self._stream = ChatStream(None)

    @property
    def done(self) -> bool:
        """`[DONE]` was seen."""
        return self._stream.done

    @property
    def error(self) -> str | None:
        """The message of an error event, if one came."""
        return self._stream.error

    def read(self, event: Event) -> None:
        """Take note of one event."""
        self._stream.pass_on(event)

    def answer(self) -> Answer:
        """What has arrived so far."""
        return self._stream.answer()


class OpenAIErrors:
    """Errors in OpenAI's shape."""

    provider = "openai"

    def error(self, refusal: Refusal) -> web.Response:
        """An error answer."""
        answer = openai_error(refusal.status, refusal.message, code=refusal.code)
        answer.headers.update(refusal.headers)
        return answer

    def error_event(self, message: str, code: str) -> bytes:
        """An error event."""
        return b"data: " + error_body(message, code=code) + b"\n\n"


class ChatDialect(OpenAIErrors):
    """`/v1/chat/completions`."""

    operation = "chat"
    native: Native | None = CHAT

    async def open(self, body: Json, caller: Caller) -> Exchange | None:
        """Nothing to translate."""
        return None

    def as_chat(self, body: Json) -> Json:
        """The request itself."""
        return body

    def read(self, answer: Json) -> Answer:
        """What a `chat.completion` says."""
        return read_answer(answer)

    def reader(self) -> StreamReader:
        """A reader for a stream that passes through."""
        return ChatReader()

    def system(self, body: Json) -> str:
        """The text of the first system or developer message."""
        for message in objects(body.get("messages")):
            if message.get("role") in SYSTEM_ROLES:
                content = message.get("content")
                parts = [text(part.get("text")) or "" for part in objects(content)]
                return text(content) or "".join(parts)
        return ""

    def replace_system(self, body: Json, text: str) -> Json:
        """A copy whose first system or developer message says `text`; what the engine will refuse stays as it is."""
        given = body.get("messages")
        if not given or not isinstance(given, list):
            return body
        messages = list(given)
        for place, message in enumerate(messages):
            if isinstance(message, dict) and message.get("role") in SYSTEM_ROLES:
                messages[place] = {**message, "content": text}
                break
        else:
            messages.insert(0, {"role": "system", "content": text})
        return {**body, "messages": messages}


class EmbeddingsDialect(ChatDialect):
    """`/v1/embeddings`: recorded, never trained."""

    operation = "embeddings"
    native: Native | None = None
