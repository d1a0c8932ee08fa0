"""OpenAI chat messages in the form of OpenTelemetry's GenAI conventions: a role and typed parts.

What has no part type there is kept under the type its sender gave it, so that nothing is lost.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from sidecar.chat_answer import Choice, mapping, objects, text

Json = dict[str, Any]


def input_messages(messages: Any) -> str:
    """`gen_ai.input.messages` (JSON text) of a request's `messages`."""
    return _json([{"role": text(one.get("role")) or "", "parts": _parts(one)} for one in objects(messages)])


def output_messages(choices: Sequence[Choice]) -> str:
    """`gen_ai.output.messages` (JSON text), one message per choice."""
    return _json(
        [
            {
                "role": text(choice.message.get("role")) or "assistant",
                "parts": _parts(choice.message),
                "finish_reason": choice.finish_reason or "error",
            }
            for choice in choices
        ]
    )


def tool_definitions(tools: Any) -> str | None:
    """`gen_ai.tool.definitions` (JSON text); None when no tool is offered."""
    offered = objects(tools)
    return _json([{"type": one.get("type"), **mapping(one.get("function"))} for one in offered]) if offered else None


def _parts(message: Mapping[str, Any]) -> list[Json]:
    content = message.get("content")
    if type(content) is str and content and len(message) == 2 and message.get("role") != "tool":
        return [{"type": "text", "content": content}]  # a role and a text: most messages
    parts: list[Json] = []
    reasoning = text(message.get("reasoning")) or text(message.get("reasoning_content"))
    if reasoning:
        parts.append({"type": "reasoning", "content": reasoning})
    if message.get("role") == "tool":
        return [*parts, {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    if isinstance(content, str):
        parts += [{"type": "text", "content": content}] if content else []
    else:
        parts += [_content_part(part) for part in objects(content)]
    if refusal := text(message.get("refusal")):
        parts.append({"type": "refusal", "content": refusal})
    return parts + [_tool_call(call) for call in objects(message.get("tool_calls"))]


def _content_part(part: Json) -> Json:
    if part.get("type") == "text":
        return {"type": "text", "content": part.get("text")}
    if part.get("type") == "image_url":
        url = text(mapping(part.get("image_url")).get("url")) or ""
        if url.startswith("data:"):
            mime_type, _, content = url.removeprefix("data:").partition(";base64,")
            return {"type": "blob", "modality": "image", "mime_type": mime_type, "content": content}
        return {"type": "uri", "modality": "image", "uri": url}
    return part


def _tool_call(call: Json) -> Json:
    function = mapping(call.get("function"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # A model may write arguments that are no JSON: they stay the text they are.
        with contextlib.suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments)
    return {"type": "tool_call", "id": call.get("id"), "name": function.get("name"), "arguments": arguments}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
