"""A chat request as a chain of messages, such that two requests can be compared by digests.

Invariant: equal digests mean that the engine would render the messages so far alike, up to how a sampled answer was
echoed. An answer and its echo are the same where what was parsed out of the tokens is: text (but for space around it)
and tool calls by name and by the value of their arguments. Thinking is compared apart, since many clients drop it.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import orjson

from sidecar.chat_answer import Choice, mapping, objects, text

Json = dict[str, Any]

RENDERING = ("model", "tools", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort")
"""Fields of a request, beside the messages, that say what the template writes."""

THOUGHT_BEGINS, THOUGHT_ENDS = "<think>", "</think>"


@dataclass(frozen=True)
class Conversation:
    """The messages of one request, without assistant messages that say nothing and are followed by another.

    Some clients echo an answer of tool calls as two messages, the first of them empty.
    """

    messages: Sequence[Json]
    settings: bytes
    """The digest of whatever else says what the template writes."""
    prefixes: tuple[tuple[int, bytes], ...]
    """For every assistant message, from the first: how many messages end with it, and their digest."""
    digest: bytes
    """Of all messages."""

    def answered(self, choice: Choice) -> bytes:
        """The digest of these messages and one answer to them."""
        return _next(self.digest, choice.message)


def conversation(chat: Mapping[str, Any]) -> Conversation | None:
    """What a request holds; None where its messages are not a list of objects (the engine will refuse it)."""
    given = chat.get("messages")
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        return None
    settings = {name: chat.get(name) for name in RENDERING}
    settings["without tools"] = chat.get("tool_choice") == "none"  # which an engine may be told to leave out then
    messages = [
        one for one, after in pairwise([*given, {}]) if not (_is_answer(one) and _is_answer(after) and _mute(one))
    ]
    digest, prefixes = b"", []
    for place, message in enumerate(messages, start=1):
        digest = _next(digest, message)
        if _is_answer(message):
            prefixes.append((place, digest))
    return Conversation(messages, _digest(settings), tuple(prefixes), digest)


def _next(digest: bytes, message: Mapping[str, Any]) -> bytes:
    return _digest(said(message) if _is_answer(message) else message, digest)


def _digest(value: Any, before: bytes = b"") -> bytes:
    return blake2b(before + orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant"


def _mute(message: Mapping[str, Any]) -> bool:
    return said(message) == ["", [], None] and not thought(message).text


def said(message: Mapping[str, Any]) -> list[Any]:
    """What an assistant message says, whatever the spelling: text, and tool calls with their arguments' values."""
    calls = [mapping(call.get("function")) for call in objects(message.get("tool_calls"))]
    named = [[call.get("name"), _arguments(call.get("arguments"))] for call in calls]
    content = _content(message.get("content")).rpartition(THOUGHT_ENDS)[2]
    return [content.strip(), named, message.get("function_call") or None]


@dataclass(frozen=True)
class Thought:
    """The thinking that a message shows; empty without any. `aloud`: in its text, as without a reasoning parser."""

    text: str
    aloud: bool


def thought(message: Mapping[str, Any]) -> Thought:
    """What an assistant message thought."""
    for name in ("reasoning", "reasoning_content"):
        if found := text(message.get(name)):
            return Thought(found.strip(), aloud=False)
    before, ends, _ = _content(message.get("content")).rpartition(THOUGHT_ENDS)
    return Thought(before.strip().removeprefix(THOUGHT_BEGINS).strip(), aloud=bool(ends))


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(text(part.get("text")) or "" for part in objects(content))
    return text(content) or ""


def _arguments(arguments: Any) -> Any:
    if isinstance(arguments, str):
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(arguments or "{}")
    return arguments


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message has a part that is not text: its tokens stand for what no id tells."""
    parts = (part for one in messages if isinstance(one.get("content"), list) for part in one["content"])
    return any(not isinstance(part, str) and mapping(part).get("type", "text") != "text" for part in parts)
