"""How the engine's template writes a conversation, asked of the engine itself (vLLM's `/tokenize`)."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from sidecar.chat_answer import count, mapping, text, token_ids
from sidecar.redaction import keys_in, redacted
from tracegrad.errors import UnreachableError

LIMIT_S = 10.0
"""Of one question. A call does not wait so long (`sidecar.continuation.patience`), an examination may."""
PATH = "/tokenize"
COPIED = ("model", "tools", "chat_template", "add_special_tokens")
"""Fields that mean the same to `/tokenize` as to a chat completion."""

Json = dict[str, Any]


class RenderError(UnreachableError):
    """The engine does not render: it does not answer, has no `/tokenize`, or refuses the messages."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """The engine answers: what it was asked is at fault."""


@dataclass(frozen=True)
class Rendering:
    """A prompt as the engine would write it."""

    ids: list[int]
    max_model_len: int


@dataclass(frozen=True)
class Renderer:
    """Asks one engine, on behalf of one request whose fields beside the messages hold."""

    session: aiohttp.ClientSession
    url: str
    authorization: str | None

    async def all(self, chat: Mapping[str, Any], *conversations: Sequence[Json]) -> list[Rendering]:
        """Each conversation's prompt, with the beginning of the next answer. Raises RenderError."""
        return list(await asyncio.gather(*(self._one(chat, messages) for messages in conversations)))

    async def _one(self, chat: Mapping[str, Any], messages: Sequence[Json]) -> Rendering:
        body = {name: chat[name] for name in COPIED if chat.get(name) is not None}
        body |= {"messages": [_renamed(one) for one in messages], "add_generation_prompt": True}
        if variables := template_variables(chat):
            body["chat_template_kwargs"] = variables
        headers = {"content-type": "application/json"}
        if self.authorization is not None:
            headers["authorization"] = self.authorization
        try:
            asked = self.session.post(
                self.url + PATH, data=orjson.dumps(body), headers=headers, timeout=aiohttp.ClientTimeout(total=LIMIT_S)
            )
            async with asked as answer:
                read = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RenderError(
                f"engine at {self.url} does not answer {PATH}: {error or type(error).__name__}"
            ) from error
        try:
            found = mapping(orjson.loads(read))
        except orjson.JSONDecodeError:
            found = {}
        if answer.status != 200:
            said = text(mapping(found.get("error")).get("message")) or f"status {answer.status}"
            said = redacted(said, keys_in({}, self.authorization))
            raise RenderError(f"engine at {self.url} refuses {PATH}: {said}", refused=True)
        ids, limit = found.get("tokens"), count(found.get("max_model_len"))
        if token_ids(ids) is None or not ids or limit is None:
            raise RenderError(f"what answers {PATH} at {self.url} is no vLLM: it tells no tokens", refused=True)
        return Rendering(ids, limit)


def template_variables(chat: Mapping[str, Any]) -> Json:
    """What a chat completion hands to the template beside messages, tools and documents."""
    given = mapping(chat.get("chat_template_kwargs"))
    effort = chat.get("reasoning_effort")
    own: Json = {"reasoning_effort": effort}
    if effort is not None and "enable_thinking" not in given:
        own["enable_thinking"] = effort != "none"
    return {**given, **{name: value for name, value in own.items() if value not in (None, "auto")}}


def has_documents(chat: Mapping[str, Any]) -> bool:
    """Whether a request hands documents to the template, as a rule others than the call before it did."""
    return bool(chat.get("documents") or mapping(chat.get("chat_template_kwargs")).get("documents"))


def _renamed(message: Json) -> Json:
    """A message with its thinking under the name that the engine reads, as its chat completions have it."""
    if "reasoning_content" not in message:
        return message
    renamed = {name: value for name, value in message.items() if name != "reasoning_content"}
    if renamed.get("reasoning") is None:
        renamed["reasoning"] = message["reasoning_content"]
    return renamed
