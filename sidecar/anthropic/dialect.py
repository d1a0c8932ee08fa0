"""`/v1/messages`."""

from aiohttp import web

from sidecar.anthropic.answer import message, message_id, read_message
from sidecar.anthropic.error import error_body, error_event
from sidecar.anthropic.request import as_chat, system_text, to_chat
from sidecar.anthropic.stream import MessageReader, MessageWriter
from sidecar.chat_answer import Answer
from sidecar.dialect import Caller, Exchange, Json, Native, Refusal, StreamReader, StreamWriter
from sidecar.openai_error import JSON


class MessagesExchange:
    """One call of a policy by an Anthropic client."""

    def __init__(self, chat: Json) -> None:
        self.chat = chat

    def seen_id(self, engine_id: str) -> str:
        """The id under Anthropic's prefix."""
        return message_id({"id": engine_id})

    def answer(self, chat: Json) -> Json:
        """The message, out of the chat completion."""
        return message(chat)

    def writer(self) -> StreamWriter:
        """A writer for the streamed message."""
        return MessageWriter()

    async def settle(self) -> None:
        """Nothing is kept."""


class MessagesDialect:
    """Anthropic's Messages API: a policy's calls are translated, a provider's pass."""

    operation = "chat"
    provider = "anthropic"
    native: Native | None = None

    def error(self, refusal: Refusal) -> web.Response:
        """An error answer."""
        body = error_body(refusal.status, refusal.message)
        return web.Response(status=refusal.status, body=body, headers={**JSON, **refusal.headers})

    def error_event(self, message: str, code: str) -> bytes:
        """An error event."""
        return error_event(message, code)

    async def open(self, body: Json, caller: Caller) -> Exchange | None:
        """The call as a chat completion. Raises Refusal."""
        return MessagesExchange(to_chat(body))

    def as_chat(self, body: Json) -> Json:
        """The request in chat completions' names."""
        return as_chat(body)

    def read(self, answer: Json) -> Answer:
        """What a whole message says."""
        return read_message(answer)

    def reader(self) -> StreamReader:
        """A reader for a stream that passes through."""
        return MessageReader()

    def system(self, body: Json) -> str:
        """The system prompt's text."""
        return system_text(body)

    def replace_system(self, body: Json, text: str) -> Json:
        """A copy whose system prompt is `text`."""
        return {**body, "system": text}
