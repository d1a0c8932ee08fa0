"""A chat completion as an Anthropic message, and the message that a provider sent as the record has it."""

from collections.abc import Mapping
from typing import Any

import orjson

from sidecar.anthropic.content import assistant_message
from sidecar.chat_answer import Answer, Choice, count, mapping, objects, text
from sidecar.dialect import Json

INVALID = "INVALID_JSON"
"""Where a tool's input stands that is no JSON object: the key that Anthropic's documentation gives it."""

_STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Anthropic's reasons to stop, in chat completions' words."""


def message(chat: Json) -> Json:
    """The `message` object, out of a `chat.completion`."""
    choice = next(iter(objects(chat.get("choices"))), {})
    said = mapping(choice.get("message"))
    identity = message_id(chat)
    content: list[Json] = []
    if thought := text(said.get("reasoning")):
        content.append(thinking_block(thought, identity))
    if words := text(said.get("content")) or text(said.get("refusal")):
        content.append({"type": "text", "text": words})
    calls = objects(said.get("tool_calls"))
    for call in calls:
        function = mapping(call.get("function"))
        block = tool_block(call.get("id"), function.get("name"))
        content.append(block | {"input": tool_input(text(function.get("arguments")) or "")})
    stop = stop_reason(choice, used_tools=bool(calls), refused=bool(text(said.get("refusal"))))
    return empty_message(chat) | {"content": content or [{"type": "text", "text": ""}]} | stop


def empty_message(chat: Json) -> Json:
    """The message before anything was said: what a stream begins with."""
    return {
        "id": message_id(chat),
        "type": "message",
        "role": "assistant",
        "model": chat.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage(chat),
    }


def message_id(chat: Mapping[str, Any]) -> str:
    """The engine's id of the answer, under Anthropic's prefix."""
    return f"msg_{(text(chat.get('id')) or '').removeprefix('chatcmpl-')}"


def thinking_block(thought: str, identity: str) -> Json:
    """What the model thought. Clients take thinking without a signature for a foreign model's, so it has one."""
    return {"type": "thinking", "thinking": thought, "signature": identity}


def tool_block(identity: Any, name: Any) -> Json:
    """A call of a tool whose input is not known yet."""
    return {"type": "tool_use", "id": identity, "name": name, "input": {}}


def tool_input(arguments: str) -> Json:
    """The object that a model wrote as a tool's arguments; what is none stands under `INVALID`."""
    if not arguments:
        return {}
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        given = None
    return given if isinstance(given, dict) else {INVALID: arguments}


def usage(chat: Mapping[str, Any]) -> Json:
    """Anthropic counts what came out of the prefix cache apart from the rest of the prompt."""
    given = mapping(chat.get("usage"))
    cached = count(mapping(given.get("prompt_tokens_details")).get("cached_tokens")) or 0
    return {
        "input_tokens": max(0, (count(given.get("prompt_tokens")) or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": count(given.get("completion_tokens")) or 0,
    }


def stop_reason(choice: Mapping[str, Any], *, used_tools: bool, refused: bool = False) -> Json:
    """Why a choice ended, as it stands in a message and in the delta that ends a stream. None: it was cut off."""
    finish, matched = choice.get("finish_reason"), text(choice.get("stop_reason"))
    reason: str | None
    if finish == "length":
        reason = "max_tokens"
    elif refused or finish == "content_filter":
        reason = "refusal"
    elif finish == "stop" and matched:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched, "stop_details": None}
    elif finish == "tool_calls" or (finish == "stop" and used_tools):
        reason = "tool_use"
    else:
        reason = None if finish in (None, "abort", "error") else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None, "stop_details": None}


def read_message(answer: Mapping[str, Any]) -> Answer:
    """What a whole message of a provider says. No errors: what is odd is left out."""
    if answer.get("type") != "message":
        return Answer()
    reason = text(answer.get("stop_reason"))
    given = mapping(answer.get("usage"))
    counts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    known = [number for name in counts if (number := count(given.get(name))) is not None]
    finish = _STOPS.get(reason, reason) if reason else None
    return Answer(
        id=text(answer.get("id")),
        model=text(answer.get("model")),
        choices=(Choice(0, assistant_message(answer.get("content"), lambda _: None), finish),),
        prompt_tokens=sum(known) if known else None,
        completion_tokens=count(given.get("output_tokens")),
    )
