"""Messages in the GenAI shape as OpenAI's chat messages, which chat templates and SFT datasets take."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

Json = dict[str, Any]


def chat_messages(messages: Sequence[Mapping[str, Any]]) -> list[Json]:
    """The same conversation. Results of tools are messages of their own; arguments of tool calls are JSON text."""
    return [told for message in messages for told in _chat_messages(message)]


def chat_tools(definitions: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Tool definitions as a chat request has them."""
    return [
        {"type": "function", "function": {name: value for name, value in one.items() if name != "type"}}
        for one in definitions
        if one.get("type") in (None, "function")
    ]


def _chat_messages(message: Mapping[str, Any]) -> Iterator[Json]:
    parts = [part for part in message.get("parts") or () if isinstance(part, dict)]
    for part in parts:
        if part.get("type") == "tool_call_response":
            yield {"role": "tool", "tool_call_id": part.get("id"), "content": _as_text(part.get("response"))}
    others = [part for part in parts if part.get("type") != "tool_call_response"]
    if others or not parts:
        yield _chat_message(message, others)


def _chat_message(message: Mapping[str, Any], parts: Sequence[Json]) -> Json:
    role = message.get("role") or "user"
    told: Json = {"role": role, "content": _content(parts)}
    if reasoning := "\n".join(_as_text(part.get("content")) for part in parts if part.get("type") == "reasoning"):
        told["reasoning_content"] = reasoning
    if refusal := "".join(_as_text(part.get("content")) for part in parts if part.get("type") == "refusal"):
        told["refusal"] = refusal
    if calls := [_tool_call(part) for part in parts if part.get("type") == "tool_call"]:
        told["tool_calls"] = calls
    return told


def _content(parts: Sequence[Json]) -> str | list[Json]:
    """One text where there is no more; else parts. Without any, an empty text: templates print None."""
    content = [_content_part(part) for part in parts if part.get("type") not in ("reasoning", "refusal", "tool_call")]
    if not content:
        return ""
    if len(content) == 1 and content[0].get("type") == "text":
        return str(content[0]["text"])
    return content


def _content_part(part: Json) -> Json:
    match part.get("type"):
        case "text":
            return {"type": "text", "text": _as_text(part.get("content"))}
        case "uri" if part.get("modality") == "image":
            return {"type": "image_url", "image_url": {"url": part.get("uri")}}
        case "blob" if part.get("modality") == "image":
            url = f"data:{part.get('mime_type')};base64,{part.get('content')}"
            return {"type": "image_url", "image_url": {"url": url}}
        case _:
            return part


def _tool_call(part: Json) -> Json:
    function = {"name": part.get("name"), "arguments": _as_text(part.get("arguments"))}
    return {"id": part.get("id"), "type": "function", "function": function}


def _as_text(value: Any) -> str:
    """Itself where it is a text, else as compact JSON; nothing is an empty text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
