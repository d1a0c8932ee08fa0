"""Items of the Responses API and the chat messages they stand for.

A chat's assistant message is several items: its reasoning, its text, each of its function calls. Neighbours are one
message again. Nothing here refuses: what chat has no form for is kept as it is, for the record; `checks` refuses it
before it would reach an engine.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sidecar.chat_answer import mapping, objects, text
from sidecar.responses.ids import Ids

Json = dict[str, Any]

TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
SYSTEM_ROLES = ("system", "developer")


def normalised(given: Any, ids: Ids) -> list[Json]:
    """A request's `input` as items that all have a type, an id and, messages, a list of parts."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_normalised(item, ids, place) for place, item in enumerate(objects(given))]


def _normalised(item: Json, ids: Ids, place: int) -> Json:
    kind = kind_of(item)
    full = {**item, "type": kind, "id": text(item.get("id")) or ids.item(kind, place)}
    if kind == "message" and isinstance(item.get("content"), str):
        full["content"] = [_text_part(item)]
    if kind in ("message", "function_call", "function_call_output"):
        full["status"] = text(item.get("status")) or "completed"
    return full


def _text_part(item: Json) -> Json:
    if item.get("role") == "assistant":
        return {"type": "output_text", "text": item["content"], "annotations": []}
    return {"type": "input_text", "text": item["content"]}


def kind_of(item: Json) -> str:
    """An item's type, which messages and references may leave out."""
    given = text(item.get("type"))
    if given is not None:
        return given
    return "message" if "role" in item else "item_reference"


def messages_of(instructions: Any, items: Sequence[Json]) -> list[Json]:
    """The chat messages of normalised items, after `instructions`.

    Several system or developer messages at the head are one, since templates may allow no second.
    """
    messages: list[Json] = []
    head = [text(instructions) or ""]
    rest = list(items)
    while rest and rest[0].get("type") == "message" and rest[0].get("role") in SYSTEM_ROLES:
        head.append(joined_text(rest.pop(0).get("content")))
    if any(head):
        messages.append({"role": "system", "content": "\n\n".join(one for one in head if one)})
    for item in rest:
        _add(messages, item)
    return messages


def _add(messages: list[Json], item: Json) -> None:
    kind = item.get("type")
    if kind == "message" and item.get("role") == "assistant":
        _add_answer(messages, item.get("content"))
    elif kind == "message":
        role = "system" if item.get("role") in SYSTEM_ROLES else item.get("role")
        messages.append({"role": role, "content": chat_content(item.get("content"))})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = chat_content(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind == "reasoning":
        _add_reasoning(messages, item)
    else:
        messages.append({"role": text(item.get("role")) or "assistant", "content": [item]})


def _assistant(messages: list[Json]) -> Json:
    """The assistant message that the next item may belong to; a new one where the last message is none."""
    if not messages or messages[-1]["role"] != "assistant" or isinstance(messages[-1].get("content"), list):
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _add_answer(messages: list[Json], content: Any) -> None:
    message = _assistant(messages)
    if message["content"] is not None and "tool_calls" not in message:
        message = {"role": "assistant", "content": None}
        messages.append(message)
    # Text after function calls that nobody has answered yet is of the same turn.
    message["content"] = (message["content"] or "") + joined_text(content)
    refusals = [text(part.get("refusal")) or "" for part in objects(content) if part.get("type") == "refusal"]
    if refusals:
        message["refusal"] = "".join(refusals)


def _add_reasoning(messages: list[Json], item: Json) -> None:
    found = joined_text(item.get("content")) or "\n\n".join(
        text(part.get("text")) or "" for part in objects(item.get("summary"))
    )
    if not found:
        return  # encrypted, or of a model that does not tell it
    message = _assistant(messages)
    if len(message) > 2 or message["content"] is not None:
        message = {"role": "assistant", "content": None}
        messages.append(message)
    message["reasoning"] = found


def joined_text(content: Any) -> str:
    """All text of a content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(text(part.get("text")) or "" for part in objects(content) if part.get("type") in TEXT_PARTS)


def chat_content(content: Any) -> Any:
    """A content in chat's form: the text alone where there is nothing else."""
    if not isinstance(content, list):
        return content
    parts = [_chat_part(part) for part in objects(content)]
    if len(parts) == 1 and parts[0].get("type") == "text":
        return parts[0]["text"]
    return parts


def _chat_part(part: Json) -> Json:
    if part.get("type") in TEXT_PARTS:
        return {"type": "text", "text": text(part.get("text")) or ""}
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    return part


def unanswered(items: Iterable[Json]) -> str | None:
    """The `call_id` of the first function output whose call does not come before it; None where all do."""
    called: set[Any] = set()
    for item in items:
        if item.get("type") == "function_call":
            called.add(item.get("call_id"))
        elif item.get("type") == "function_call_output" and item.get("call_id") not in called:
            return str(item.get("call_id"))
    return None


def chat_tools(tools: Any) -> list[Json]:
    """Tools in chat's form. Of what is no function only type and name are kept: the rest may hold secrets."""
    found: list[Json] = []
    for tool in objects(tools):
        if tool.get("type") == "function":
            names = ("name", "description", "parameters", "strict")
            function = {name: tool[name] for name in names if tool.get(name) is not None}
            found.append({"type": "function", "function": function})
        else:
            named = {"function": {"name": tool["name"]}} if "name" in tool else {}
            found.append({"type": tool.get("type"), **named})
    return found


def allowed_names(choice: Any) -> set[str | None]:
    """The functions that an `allowed_tools` choice names."""
    return {text(tool.get("name")) for tool in objects(mapping(choice).get("tools"))}
