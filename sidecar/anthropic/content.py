"""The content blocks of Anthropic messages as chat messages: one that answers tools becomes several."""

import json
from collections.abc import Callable
from typing import Any

from sidecar.chat_answer import mapping, objects, text
from sidecar.dialect import Json

Odd = Callable[[str], None]


def user_messages(content: Any, odd: Odd) -> list[Json]:
    """The tool results, which answer the message before, and then what the user says."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    messages: list[Json] = []
    parts: list[Json] = []
    for block in objects(content):
        if block.get("type") == "tool_result":
            said, others = _tool_result(block, odd)
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said})
            parts += others
        else:
            parts.append(_part(block, odd))
    if parts or not messages:
        only_text = len(parts) == 1 and parts[0].get("type") == "text"
        messages.append({"role": "user", "content": parts[0]["text"] if only_text else parts or ""})
    return messages


def assistant_message(content: Any, odd: Odd) -> Json:
    """What the model said, thought and called in one turn."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    said: list[str] = []
    thought: list[str] = []
    calls: list[Json] = []
    others: list[Json] = []
    for block in objects(content):
        match block.get("type"):
            case "text":
                said.append(text(block.get("text")) or "")
            case "thinking":
                thought.append(text(block.get("thinking")) or "")
            case "redacted_thinking":
                pass  # readable by Anthropic only
            case "tool_use":
                calls.append(_tool_call(block))
            case _:
                others.append(_part(block, odd))
    message: Json = {"role": "assistant", "content": "".join(said) or (None if calls else "")}
    if others:
        message["content"] = [*({"type": "text", "text": one} for one in said), *others]
    if any(thought):
        message["reasoning"] = "".join(thought)
    if calls:
        message["tool_calls"] = calls
    return message


def system_message(content: Any, odd: Odd) -> Json:
    """Instructions in the middle of a conversation."""
    if isinstance(content, str):
        return {"role": "system", "content": content}
    parts = [_part(block, odd) for block in objects(content)]
    return {"role": "system", "content": "\n\n".join(text(part.get("text")) or "" for part in parts)}


def _tool_call(block: Json) -> Json:
    # In json's own spacing, which is how most models write it.
    arguments = json.dumps(mapping(block.get("input")), ensure_ascii=False)
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tool_result(block: Json, odd: Odd) -> tuple[str, list[Json]]:
    """Its text, and what a tool's message cannot hold and the user's after it does: images."""
    content = block.get("content")
    parts = [_part(one, odd) for one in objects(content)]
    texts = [text(part.get("text")) or "" for part in parts if part.get("type") == "text"]
    said = content if isinstance(content, str) else "\n".join(texts)
    if block.get("is_error") and not said.lower().startswith("error"):
        said = f"Error: {said}" if said else "Error"
    return said, [part for part in parts if part.get("type") != "text"]


def _part(block: Json, odd: Odd) -> Json:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": text(block.get("text")) or ""}
    if kind == "image":
        return _image(block, odd)
    if kind == "document":
        odd("document blocks are not supported by a policy's engine: send the document's text in a text block")
    else:
        odd(f"content blocks of type {kind!r} are not supported by a policy's engine: send text, images and tool use")
    return block


def _image(block: Json, odd: Odd) -> Json:
    source = mapping(block.get("source"))
    match source.get("type"):
        case "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        case "url":
            url = text(source.get("url")) or ""
        case kind:
            odd(f"image sources of type {kind!r} are not supported by a policy's engine: send base64 or a url")
            return block
    return {"type": "image_url", "image_url": {"url": url}}
