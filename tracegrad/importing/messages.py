"""Chat messages of any framework in the shape of OpenTelemetry's GenAI conventions: a role and typed parts.

Understood are OpenAI's chat messages and Responses items, Anthropic's content blocks, LangChain's serialised messages,
the Vercel AI SDK's parts, Gemini's contents, and messages that are in the GenAI shape already. What has no part type
there is kept under the type its sender gave it, so that nothing is lost.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tracegrad.importing.foreign import Json, Message
from tracegrad.importing.json_text import mapping, parsed, text
from tracegrad.importing.message_parts import content_parts, tool_call_part

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "humanmessage": "user",
    "aimessage": "assistant",
    "aimessagechunk": "assistant",
    "systemmessage": "system",
    "toolmessage": "tool",
    "function": "tool",
}
_HOLDERS = ("messages", "contents", "input", "output", "choices", "candidates", "prompt", "message", "response")
"""Where a request or an answer holds its messages."""
_SYSTEM = ("system", "instructions", "system_instruction", "systemInstruction")


def messages_of(value: Any, role: str) -> list[Message]:
    """The messages that a request (`role` user) or an answer (assistant) holds. Who names no role has `role`."""
    value = parsed(value)
    if value is None or value in ("", [], {}):
        return []
    if isinstance(value, list):
        return _messages_of_list(value, role)
    if isinstance(value, dict):
        return list(_messages(value, role)) if _is_message(value) else _messages_of_holder(value, role)
    return [{"role": role, "parts": content_parts(value)}]


def _messages_of_holder(value: Json, role: str) -> list[Message]:
    for key in _HOLDERS:
        if found := messages_of(value.get(key), role):
            system = next((value[key] for key in _SYSTEM if value.get(key)), None)
            return _with_reason(with_system(found, system) if role == "user" else found, value)
    if isinstance(content := value.get("content"), dict):  # a candidate of Gemini's
        return _with_reason(messages_of(content, role), value)
    if "content" in value:
        return list(_messages(value, role))
    if not any(value.values()):
        return []
    told = value["text"] if isinstance(value.get("text"), str) else value
    return _with_reason([{"role": role, "parts": content_parts(told)}], value)


def with_system(messages: list[Message], instructions: Any) -> list[Message]:
    """The messages behind a system message, where instructions were given apart from them and are not there yet."""
    system = [message | {"role": "system"} for message in messages_of(instructions, "system")]
    if not system or (messages and messages[0]["role"] in ("system", "developer")):
        return messages
    return [*system, *messages]


def _messages_of_list(values: list[Any], role: str) -> list[Message]:
    values = [parsed(value) for value in values]
    if all(isinstance(value, dict) and _is_part(value) for value in values):
        return [{"role": role, "parts": content_parts(values)}]
    messages: list[Message] = []
    goes_on = False
    for value in values:
        found = messages_of(value, role)
        # The Responses API tells one answer in several items.
        is_item = isinstance(value, dict) and (value.get("type") in _ITEMS or value.get("type") == "message")
        for message in found:
            if goes_on and is_item and message["role"] == "assistant":
                messages[-1] = messages[-1] | {"parts": [*messages[-1]["parts"], *message["parts"]]}
            else:
                messages.append(message)
            goes_on = is_item and message["role"] == "assistant"
    return messages


def _is_part(value: Mapping[str, Any]) -> bool:
    return not _is_message(value) and "content" not in value and ("text" in value or isinstance(value.get("type"), str))


def _is_message(value: Mapping[str, Any]) -> bool:
    return (
        isinstance(value.get("role"), str)
        or isinstance(value.get("parts"), list)
        or value.get("type") in _ITEMS
        or (isinstance(value.get("type"), str) and value["type"].lower() in _ROLES and "content" in value)
        or (value.get("type") in ("system", "tool", "user", "assistant") and "content" in value)
        or _constructed(value) is not None
    )


def _constructed(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """LangChain's own form: which class of message, and with what."""
    names, given = value.get("id"), value.get("kwargs")
    if value.get("type") == "constructor" and isinstance(names, list) and names and isinstance(given, dict):
        return str(names[-1]).lower(), given
    return None


def _messages(message: Mapping[str, Any], role: str) -> Iterator[Message]:
    """What one message is in the GenAI shape: results of tools, which some put among a user's words, are their own."""
    if (item := _ITEMS.get(message.get("type", ""))) is not None and not isinstance(message.get("role"), str):
        yield item(message)
        return
    if (constructed := _constructed(message)) is not None:
        yield from _messages({"role": constructed[0]} | dict(constructed[1]), role)
        return
    told = text(message.get("role")) or text(message.get("type")) or role
    known = _ROLES.get(told.lower(), told)
    parts = list(_parts(message, known))
    results = [part for part in parts if part.get("type") == "tool_call_response"]
    others = [part for part in parts if part.get("type") != "tool_call_response"]
    for result in results:
        yield _named({"role": "tool", "parts": [result]}, message)
    if others or not results:
        yield _named({"role": known, "parts": others}, message)


def _named(told: Message, message: Mapping[str, Any]) -> Message:
    if (reason := text(message.get("finish_reason"))) is not None:
        told["finish_reason"] = reason
    return told


def _with_reason(messages: list[Message], holder: Mapping[str, Any]) -> list[Message]:
    reason = text(holder.get("finish_reason")) or text(holder.get("finishReason"))
    if reason is not None and messages and "finish_reason" not in messages[-1]:
        messages[-1] = messages[-1] | {"finish_reason": reason}
    return messages


def _parts(message: Mapping[str, Any], role: str) -> Iterator[Json]:
    extra = mapping(message.get("additional_kwargs"))
    for key in ("reasoning", "reasoning_content", "thinking"):
        if reasoning := text(message.get(key)) or text(extra.get(key)):
            yield {"type": "reasoning", "content": reasoning}
            break
    content = message["parts"] if isinstance(message.get("parts"), list) else message.get("content")
    call_id = message.get("tool_call_id") or message.get("toolCallId") or message.get("tool_use_id")
    if role == "tool" and (call_id or not _has_result(content)):
        yield {"type": "tool_call_response", "id": call_id, "response": content}
        return
    yield from content_parts(content)
    if refusal := text(message.get("refusal")) or text(extra.get("refusal")):
        yield {"type": "refusal", "content": refusal}
    calls = message.get("tool_calls") or message.get("toolCalls") or extra.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            yield tool_call_part(call)
    if isinstance(call := message.get("function_call"), dict):
        yield tool_call_part(call)


def _has_result(content: Any) -> bool:
    return any(part["type"] == "tool_call_response" for part in content_parts(content))


def _reasoning_item(item: Mapping[str, Any]) -> Message:
    told = item.get("content") or item.get("summary") or []
    texts = [text(mapping(one).get("text")) or "" for one in told] if isinstance(told, list) else [str(told)]
    return {"role": "assistant", "parts": [{"type": "reasoning", "content": one} for one in texts if one]}


def _call_item(item: Mapping[str, Any]) -> Message:
    return {"role": "assistant", "parts": [tool_call_part(item)]}


def _result_item(item: Mapping[str, Any]) -> Message:
    return {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": item.get("call_id"), "response": item.get("output")}],
    }


_ITEMS = {
    "reasoning": _reasoning_item,
    "function_call": _call_item,
    "custom_tool_call": _call_item,
    "function_call_output": _result_item,
    "custom_tool_call_output": _result_item,
}
"""Items of the Responses API that are no message."""
