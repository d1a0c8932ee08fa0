"""The APIs that agents speak, as siblings behind small interfaces.

A policy's engine speaks two of them itself (chat completions and completions): there its own bytes are passed on, less
what only we asked for. The others (responses, messages) are translated: their request becomes a chat completion, whose
answer or stream becomes theirs, so that token ids exist for them too. What passes through to a provider is only read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from sidecar.chat_answer import Answer
from sidecar.chat_request import Hidden
from sidecar.held import Held
from sidecar.sse import Event

Json = dict[str, Any]


class Refusal(Exception):  # noqa: N818 - not a failure: an answer
    """A request that is not served; `message` says what to do. Each API shows it in its own error shape."""

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Caller:
    """Who asks, and so whose stored state a request may refer to."""

    tenant: str = ""
    """The tenant whose key the request bore; empty where no tenants are configured."""


class NativeStream(Protocol):
    """Reads a stream of the engine, event by event, and says what the client gets of it."""

    done: bool
    """The stream came to its own end."""
    error: str | None
    """The message of an error event, if one came."""
    garbled: bool
    """Data came that is no JSON object: tokens may be missing."""
    held: Held
    """What waits for the usage chunk."""

    def pass_on(self, event: Event) -> bytes:
        """Read one event; returns the bytes that the client gets for it, which may be none."""

    def flush(self) -> bytes:
        """What is held back, for when the stream breaks off."""

    def answer(self) -> Answer:
        """What has arrived so far."""


class Native(Protocol):
    """An API that the engine speaks: what to add to a request so that it tells its tokens, and what to hide again."""

    path: str

    def capture_fields(self, body: Mapping[str, Any]) -> tuple[Json, Hidden]:
        """The fields to set in the engine's request, and what to hide from its answer."""

    def read(self, raw: bytes, hidden: Hidden) -> tuple[Answer, bytes]:
        """What a whole answer says, and the bytes the client gets. Raises ValueError where it is no JSON object."""

    def stream(self, hidden: Hidden) -> NativeStream:
        """A reader for one stream."""


class StreamWriter(Protocol):
    """Turns the chunks of a streamed chat completion into the events of another API."""

    def chunk(self, chunk: Json) -> bytes:
        """The events for one `chat.completion.chunk`, as a client would get it; may be none. The last has usage."""

    def end(self) -> bytes:
        """The events that end the stream well, after `[DONE]`."""

    def error(self, message: str, code: str) -> bytes:
        """The events that end it badly."""


class Exchange(Protocol):
    """One translated call of a policy."""

    chat: Json
    """The chat completion to ask the engine for. With `stream`, its `stream_options` ask for usage."""

    def seen_id(self, engine_id: str) -> str:
        """The answer's id as its client sees it, which is the one that feedback will name."""

    def answer(self, chat: Json) -> Json:
        """The whole answer, out of a `chat.completion` as its client would have got it."""

    def writer(self) -> StreamWriter:
        """A writer for the streamed answer."""

    async def settle(self) -> None:
        """Keep what later requests may refer to, once the answer is whole and before its client has its end."""


class StreamReader(Protocol):
    """Reads a stream that passes through, for the record."""

    @property
    def done(self) -> bool:
        """The stream came to its own end."""

    @property
    def error(self) -> str | None:
        """The message of an error event, if one came."""

    def read(self, event: Event) -> None:
        """Take note of one event."""

    def answer(self) -> Answer:
        """What has arrived so far."""


class Dialect(Protocol):
    """One API."""

    operation: str
    """`gen_ai.operation.name`."""
    provider: str
    """`gen_ai.provider.name` of a call that passes through."""
    native: Native | None
    """Set where the engine speaks this API itself; else `open` translates, or where that is impossible (embeddings)
    returns None, and the call passes through."""

    def error(self, refusal: Refusal) -> web.Response:
        """An error in the API's own shape."""

    def error_event(self, message: str, code: str) -> bytes:
        """The same in the middle of a stream: a whole server-sent event."""

    async def open(self, body: Json, caller: Caller) -> Exchange | None:
        """Translate a request of a policy. Raises Refusal."""

    def as_chat(self, body: Json) -> Json:
        """What the record needs of a request, in chat completions' names (`messages`, `tools`, sampling). No errors."""

    def read(self, answer: Json) -> Answer:
        """What a whole answer that passed through says, for the record. No errors: what is odd is left out."""

    def reader(self) -> StreamReader:
        """A reader for a stream that passes through."""

    def system(self, body: Json) -> str:
        """The system prompt's text; empty where there is none."""

    def replace_system(self, body: Json, text: str) -> Json:
        """A copy of the request with `text` as its system prompt, added where there was none."""
