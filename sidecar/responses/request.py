"""A Responses request as the chat completion that it stands for.

Nothing here refuses, so that whatever passes through can be recorded; `checks` has refused before an engine is asked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.chat_answer import mapping, objects, text
from sidecar.responses.items import allowed_names, chat_tools, messages_of

Json = dict[str, Any]

LOGPROBS = "message.output_text.logprobs"
"""The member of `include` that asks for log-probs."""
SAME = ("model", "temperature", "top_p", "parallel_tool_calls", "user")
"""Fields that chat completions have under the same name."""
RESPONSES_ONLY = frozenset(
    (
        *("access_programs", "background", "background_options", "context_management", "conversation", "image"),
        *("include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "moderation"),
        *("previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        *("reasoning", "safety_identifier", "service_tier", "store", "stream", "stream_options", "text"),
        *("tool_choice", "tools", "top_logprobs", "truncation"),
    )
)
"""Fields that are translated, answered by us, or of no meaning to an engine."""
NO_MEANING = frozenset(
    (
        *("return_token_ids", "return_tokens_as_token_ids", "return_prompt_text", "return_token_offsets"),
        *("enable_response_messages", "previous_input_messages", "prompt_logprobs", "echo", "stream_interval", "n"),
    )
)
"""Fields of engines whose effect no response could show."""


def chat_of(body: Mapping[str, Any], items: Sequence[Json]) -> Json:
    """The chat completion for a request whose conversation is `items`, normalised. An engine's own fields are kept."""
    chat: Json = {name: body[name] for name in SAME if body.get(name) is not None}
    chat["messages"] = messages_of(body.get("instructions"), items)
    chat |= _tools(body)
    if (form := _response_format(mapping(body.get("text")).get("format"))) is not None:
        chat["response_format"] = form
    if (effort := mapping(body.get("reasoning")).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if body.get("truncation") == "auto":
        chat["truncate_prompt_tokens"] = -1  # vLLM: as much of the prompt's end as fits
    if wants_logprobs(body):
        chat |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    if body.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    known = RESPONSES_ONLY | NO_MEANING
    return chat | {name: value for name, value in body.items() if name not in known and name not in chat}


def wants_logprobs(body: Mapping[str, Any]) -> bool:
    """Whether the answer's text is to have log-probs."""
    include = body.get("include")
    return isinstance(include, list) and LOGPROBS in include


def _tools(body: Mapping[str, Any]) -> Json:
    tools, choice = objects(body.get("tools")), body.get("tool_choice")
    if mapping(choice).get("type") == "allowed_tools":
        names = allowed_names(choice)
        tools, choice = [tool for tool in tools if text(tool.get("name")) in names], mapping(choice).get("mode")
    if not tools:
        return {}  # engines refuse a choice between no tools
    if mapping(choice).get("type") == "function":
        choice = {"type": "function", "function": {"name": mapping(choice).get("name")}}
    return {"tools": chat_tools(tools)} | ({"tool_choice": choice} if choice is not None else {})


def _response_format(form: Any) -> Json | None:
    kind = text(mapping(form).get("type"))
    if kind == "json_schema":
        names = ("name", "description", "schema", "strict")
        return {"type": kind, "json_schema": {name: form[name] for name in names if form.get(name) is not None}}
    return dict(form) if kind not in (None, "text") else None
