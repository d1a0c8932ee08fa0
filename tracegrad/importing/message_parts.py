"""The parts of a message: texts, reasoning, tool calls and their results, media."""

from collections.abc import Callable, Mapping
from typing import Any

from tracegrad.importing.foreign import Json
from tracegrad.importing.json_text import json_text, mapping, parsed, text

_CALL_IDS = ("call_id", "tool_call_id", "toolCallId", "tool_use_id", "id")
_ARGUMENTS = ("arguments", "args", "input", "parameters")
_RESULTS = ("response", "result", "output", "content")


def content_parts(content: Any) -> list[Json]:
    """The typed parts of a message's content, which is a text, a list of parts, one part, or anything."""
    if content is None or content in ("", []):
        return []
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    if isinstance(content, dict):
        if isinstance(content.get("parts"), list):  # Gemini's
            return content_parts(content["parts"])
        return [_part(content)]
    if isinstance(content, list):
        return [part for one in content if one not in (None, "") for part in _parts_of(one)]
    return [{"type": "text", "content": json_text(content)}]


def _parts_of(one: Any) -> list[Json]:
    if isinstance(one, dict):
        part = _part(one)
        return [] if part.get("type") == "text" and part.get("content") in (None, "") else [part]
    return content_parts(one)


def tool_call_part(call: Mapping[str, Any]) -> Json:
    """A tool call of OpenAI (chat or Responses), LangChain, Anthropic, the Vercel AI SDK or Gemini."""
    function = mapping(call.get("function"))
    if not function:
        function = mapping(call.get("functionCall")) or mapping(call.get("function_call")) or call
    name = text(function.get("name")) or text(call.get("toolName")) or text(call.get("tool_name"))
    arguments = next((function[key] for key in _ARGUMENTS if function.get(key) is not None), None)
    return {"type": "tool_call", "id": _first(call, _CALL_IDS), "name": name, "arguments": parsed(arguments)}


def _part(part: Json) -> Json:
    told = part.get("type")
    if told is None:
        return _untyped(part)
    make = _PARTS.get(told) if isinstance(told, str) else None
    return make(part) if make is not None else part


def _text(part: Json) -> Json:
    told = part.get("content", part.get("text"))
    return {"type": "text", "content": told if isinstance(told, str) else json_text(told)}


def _reasoning(part: Json) -> Json:
    return {"type": "reasoning", "content": part.get("thinking") or part.get("content") or part.get("text") or ""}


def _refusal(part: Json) -> Json:
    return {"type": "refusal", "content": part.get("content", part.get("refusal"))}


def _tool_result(part: Json) -> Json:
    result = next((part[key] for key in _RESULTS if part.get(key) is not None), None)
    if isinstance(result, dict) and set(result) == {"type", "value"}:  # as the Vercel AI SDK wraps it
        result = result["value"]
    return {"type": "tool_call_response", "id": _first(part, _CALL_IDS), "response": result}


def _media(part: Json) -> Json:
    told = part.get("image_url") or part.get("image") or part.get("url")
    url = text(told) or text(mapping(told).get("url"))
    if url is None:
        return part
    if url.startswith("data:"):
        mime_type, _, content = url.removeprefix("data:").partition(";base64,")
        return {"type": "blob", "modality": "image", "mime_type": mime_type, "content": content}
    return {"type": "uri", "modality": "image", "uri": url}


def _untyped(part: Json) -> Json:
    """Gemini's parts say by their key what they are."""
    if isinstance(part.get("text"), str):
        return {"type": "reasoning" if part.get("thought") is True else "text", "content": part["text"]}
    if "functionCall" in part or "function_call" in part:
        call = mapping(part.get("functionCall") or part.get("function_call"))
        return tool_call_part(call)
    if "functionResponse" in part or "function_response" in part:
        result = mapping(part.get("functionResponse") or part.get("function_response"))
        return {
            "type": "tool_call_response",
            "id": result.get("id") or result.get("name"),
            "response": result.get("response"),
        }
    return {"type": "text", "content": json_text(part)}


def _first(told: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((told[key] for key in keys if told.get(key)), None)


_PARTS: dict[str, Callable[[Json], Json]] = {
    **dict.fromkeys(("text", "input_text", "output_text"), _text),
    **dict.fromkeys(("thinking", "reasoning"), _reasoning),
    **dict.fromkeys(("tool_call", "tool_use", "tool-call", "function_call", "function"), tool_call_part),
    **dict.fromkeys(("tool_call_response", "tool_result", "tool-result", "function_call_output"), _tool_result),
    **dict.fromkeys(("image_url", "input_image", "image"), _media),
    "refusal": _refusal,
}
"""What makes a part of ours of one of these types; one of any other type stays as it is."""
