"""What a policy's engine cannot do, refused before it is asked, with a word on what to do instead."""

from collections.abc import Iterable, Mapping
from typing import Any

from sidecar.chat_answer import mapping, text
from sidecar.dialect import Refusal
from sidecar.responses.items import kind_of

Json = dict[str, Any]

MOVED = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "functions": "tools",
    "function_call": "tool_choice",
    "logprobs": "top_logprobs with include: ['message.output_text.logprobs']",
}
"""Chat completions' fields by the name they have here."""
NOT_SERVED = {
    "background": "a policy answers in the foreground: leave `background` out, and stream if the answer takes long",
    "conversation": "conversation objects are kept by OpenAI alone: continue with `previous_response_id` instead",
    "prompt": "prompt templates are kept by OpenAI alone: put the text into `instructions` and `input`",
    "context_management": "a policy's context is not compacted: leave `context_management` out",
    "moderation": "a policy's calls are not moderated: leave `moderation` out",
    "n": "a response is one answer: send the request several times, or use /v1/chat/completions",
    "use_beam_search": "a response is sampled: use /v1/chat/completions for beam search",
}
ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
ROLES = ("user", "assistant", "system", "developer")
TEXTS = ("input_text", "output_text", "text", "refusal")
OTHER_PARTS = ("input_image", "input_audio", "audio_url", "video_url", "image_url")
CHOICES = ("auto", "none", "required")


class BadRequest(Refusal):
    """A 400 that names the parameter at fault."""

    def __init__(self, message: str, param: str, code: str | None = None, status: int = 400) -> None:
        super().__init__(status, message, code)
        self.param = param


def check(body: Mapping[str, Any]) -> None:
    """Raise BadRequest where a request cannot be served, whatever conversation it continues."""
    for name, place in MOVED.items():
        if body.get(name) is not None:
            raise BadRequest(f"`{name}` is `{place}` in the Responses API", name, "unsupported_parameter")
    for name, why in NOT_SERVED.items():
        given = body.get(name)
        if given not in (None, False, []) and not (name == "n" and given == 1):
            raise BadRequest(why, name, "unsupported_parameter")
    if body.get("input") in (None, []) and not body.get("previous_response_id"):
        message = "`input` is missing: say something to the model, or continue with `previous_response_id`"
        raise BadRequest(message, "input", "missing_required_parameter")
    _check_input(body.get("input"))
    for name in ("instructions", "previous_response_id"):
        if not isinstance(body.get(name), str | None):
            raise BadRequest(f"`{name}` must be a string", name, "invalid_type")
    for name in ("text", "reasoning", "metadata"):
        if not isinstance(body.get(name), dict | None):
            raise BadRequest(f"`{name}` must be an object", name, "invalid_type")
    _check_tools(body.get("tools"), body.get("tool_choice"))
    kind = mapping(mapping(body.get("text")).get("format")).get("type")
    if kind not in (None, "text", "json_object", "json_schema"):
        message = f"`text.format` of type {kind!r} is not served: use text, json_object or json_schema"
        raise BadRequest(message, "text.format")


def _check_input(given: Any) -> None:
    if given is None or isinstance(given, str):
        return
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise BadRequest("`input` must be a string or a list of items", "input", "invalid_type")
    for place, item in enumerate(given):
        _check_item(item, f"input[{place}]")


def _check_item(item: Json, where: str) -> None:
    kind = kind_of(item)
    if kind not in ITEMS:
        message = f"items of type {kind!r} are not for a policy, which reads {', '.join(ITEMS)}: leave it out"
        raise BadRequest(message, where, "unsupported_item")
    if kind == "message":
        if item.get("role") not in ROLES:
            raise BadRequest(f"the role of a message must be one of {', '.join(ROLES)}", f"{where}.role")
        _check_content(item.get("content"), f"{where}.content")
    elif kind == "function_call":
        _require(item, ("call_id", "name", "arguments"), where)
    elif kind == "function_call_output":
        _require(item, ("call_id",), where)
        _check_content(item.get("output"), f"{where}.output")
    elif kind == "item_reference":
        _require(item, ("id",), where)


def _check_content(content: Any, where: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise BadRequest("a content must be a string or a list of parts", where, "invalid_type")
    for place, part in enumerate(content):
        kind = part.get("type")
        if kind == "input_image" and not isinstance(part.get("image_url"), str):
            message = "no files are kept here: give the image as `image_url`, an address or a data: URL"
            raise BadRequest(message, f"{where}[{place}]")
        if kind not in (*TEXTS, *OTHER_PARTS):
            message = f"parts of type {kind!r} are not for a policy: send text or images"
            raise BadRequest(message, f"{where}[{place}]", "unsupported_part")


def _require(item: Json, names: Iterable[str], where: str) -> None:
    for name in names:
        if not isinstance(item.get(name), str):
            raise BadRequest(f"`{name}` is missing or no string", f"{where}.{name}", "missing_required_parameter")


def _check_tools(tools: Any, choice: Any) -> None:
    if tools is not None and (not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools)):
        raise BadRequest("`tools` must be a list of tools", "tools", "invalid_type")
    for place, tool in enumerate(tools or []):
        if tool.get("type") != "function":
            message = (
                f"tools of type {tool.get('type')!r} run at OpenAI and not with a policy: "
                "declare a function tool and run it in the agent"
            )
            raise BadRequest(message, f"tools[{place}]", "unsupported_tool")
        _require(tool, ("name",), f"tools[{place}]")
    names = {tool["name"] for tool in tools or []}
    if choice is None or choice in CHOICES:
        if choice == "required" and not names:
            raise BadRequest("`tool_choice` is required, but there are no `tools`", "tool_choice")
        return
    kind = mapping(choice).get("type")
    if kind == "function":
        chosen = [mapping(choice).get("name")]
    elif kind == "allowed_tools" and mapping(choice).get("mode") in ("auto", "required"):
        given = mapping(choice).get("tools")
        chosen = [mapping(tool).get("name") for tool in given] if isinstance(given, list) else []
    else:
        message = "`tool_choice` must be auto, none, required, or an object of type function or allowed_tools"
        raise BadRequest(message, "tool_choice")
    if unknown := [text(name) or "?" for name in chosen if name not in names]:
        raise BadRequest(f"`tool_choice` names {', '.join(unknown)}, which is not in `tools`", "tool_choice")
