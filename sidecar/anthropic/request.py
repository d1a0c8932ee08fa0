"""An Anthropic Messages request as a chat completion.

For the engine it is strict: what a policy's engine cannot do is refused, nothing is dropped in silence that changes
what the model is asked. For the record of a call that passes through it never fails: what has no counterpart in chat
completions is kept as it came.
"""

from collections.abc import Callable
from typing import Any

from sidecar.anthropic.content import assistant_message, system_message, user_messages
from sidecar.chat_answer import count, mapping, objects, text
from sidecar.dialect import Json, Refusal

Odd = Callable[[str], None]
"""Told of what has no counterpart: raises for the engine, keeps silent for the record."""

SAME_NAME = ("model", "max_tokens", "temperature", "top_p", "top_k")
ENGINE_ONLY = ("seed", "min_p", "priority", "cache_salt", "vllm_xargs", "watermarking", "kv_transfer_params")
"""Fields of vLLM's own `/v1/messages` that Anthropic's has not: a client that knows them gets them."""
SERVER_SIDE = ("mcp_servers", "container")
"""What Anthropic's servers would run."""
BILLING_MARK = "x-anthropic-billing-header"
"""How a system block begins that differs in every request: no prompt would ever extend an earlier one."""


def to_chat(body: Json) -> Json:
    """The chat completion to ask an engine for. Raises Refusal."""
    chat = to_prompt(body)
    if count(body.get("max_tokens")) is None:
        _refuse("max_tokens: a whole number is required")
    if body.get("stream"):
        # With usage on every chunk the first event can tell the prompt's length, as Anthropic's does.
        chat |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return chat


def to_prompt(body: Json) -> Json:
    """What of it becomes the prompt, and how it is sampled. Raises Refusal."""
    chat = _chat(body, _refuse)
    last = chat["messages"][-1]
    if last["role"] == "assistant" and last["content"] and not last.keys() & {"tool_calls", "reasoning"}:
        # The answer goes on where the caller's last message ends.
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    return chat


def as_chat(body: Json) -> Json:
    """The same for the record. No errors."""
    return _chat(body, lambda _: None)


def system_text(body: Json) -> str:
    """The system prompt; empty where there is none."""
    given = body.get("system")
    parts = [given] if isinstance(given, str) else [text(block.get("text")) or "" for block in objects(given)]
    return "\n\n".join(part for part in parts if part and not part.startswith(BILLING_MARK))


def _refuse(message: str) -> None:
    raise Refusal(400, message, "invalid_request")


def _chat(body: Json, odd: Odd) -> Json:
    for name in SERVER_SIDE:
        if body.get(name):
            odd(f"{name}: runs on Anthropic's servers, a policy's engine has none: call such tools from the agent")
    chat: Json = {name: body[name] for name in (*SAME_NAME, *ENGINE_ONLY) if body.get(name) is not None}
    _check_types(body, odd)
    chat["messages"] = _messages(body, odd)
    if stop := body.get("stop_sequences"):
        chat["stop"] = stop
    if user := text(mapping(body.get("metadata")).get("user_id")):
        chat["user"] = user
    chat |= _tools(body, odd)
    chat |= _thinking(body)
    chat |= _output_format(body, odd)
    return chat


def _check_types(body: Json, odd: Odd) -> None:
    """What would be read as if it were not there."""
    system = body.get("system")
    blocks = system if isinstance(system, list) else []
    if not isinstance(system, str | list | None) or any(text(mapping(one).get("text")) is None for one in blocks):
        odd("system: text or a list of text blocks is required")
    for name in ("thinking", "metadata", "output_config", "tool_choice", "chat_template_kwargs"):
        if not isinstance(body.get(name), dict | None):
            odd(f"{name}: an object is required")
    if not isinstance(mapping(body.get("metadata")).get("user_id"), str | None):
        odd("metadata.user_id: text is required")


def _messages(body: Json, odd: Odd) -> list[Json]:
    given = body.get("messages")
    if not isinstance(given, list) or not given or len(objects(given)) < len(given):
        odd("messages: a list of at least one message is required")
    system = system_text(body)
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for place, message in enumerate(objects(given)):
        content = message.get("content")
        if not isinstance(content, str) and (not isinstance(content, list) or len(objects(content)) < len(content)):
            odd(f"messages.{place}.content: text or a list of content blocks is required")
        match message.get("role"):
            case "user":
                messages += user_messages(content, odd)
            case "assistant":
                messages.append(assistant_message(content, odd))
            case "system":
                messages.append(system_message(content, odd))
            case role:
                odd(f"messages.{place}.role: must be user or assistant, not {role!r}")
    return messages


def _tools(body: Json, odd: Odd) -> Json:
    fields: Json = {}
    given = body.get("tools")
    tools = objects(given)
    if given is not None and (not isinstance(given, list) or len(tools) < len(given)):
        odd("tools: a list of tool definitions is required")
    if tools:
        fields["tools"] = [_tool(tool, odd) for tool in tools]
    choice = mapping(body.get("tool_choice"))
    match choice.get("type"):
        case None:
            return fields
        case "auto" | "none" as kind:
            fields["tool_choice"] = kind
        case "any":
            fields["tool_choice"] = "required"
        case "tool":
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
        case kind:
            odd(f"tool_choice.type: must be auto, any, tool or none, not {kind!r}")
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: Json, odd: Odd) -> Json:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        odd(
            f"tools: {kind!r} is defined by Anthropic and works with its models only: offer a policy's model a custom "
            "tool with a name and an input_schema"
        )
        return {"type": kind, "function": {name: value for name, value in tool.items() if name != "type"}}
    function: Json = {"name": tool.get("name")}
    for name, theirs in (("description", "description"), ("parameters", "input_schema"), ("strict", "strict")):
        if (value := tool.get(theirs)) is not None:
            function[name] = value
    return {"type": "function", "function": function}


def _thinking(body: Json) -> Json:
    """Whether the template lets the model think.

    `budget_tokens` is not asked of the engine: it ends thinking by tokens that it puts in the policy's mouth, which
    must not be trained on. `max_tokens` holds for thinking and answer together, as it does for Anthropic.
    """
    fields: Json = {}
    template: Json = dict(mapping(body.get("chat_template_kwargs")))
    kind = mapping(body.get("thinking")).get("type")
    if kind in ("enabled", "disabled"):
        template.setdefault("enable_thinking", kind == "enabled")
    if template:
        fields["chat_template_kwargs"] = template
    if effort := text(mapping(body.get("output_config")).get("effort")):
        fields["reasoning_effort"] = effort
    return fields


def _output_format(body: Json, odd: Odd) -> Json:
    given: Any = mapping(body.get("output_config")).get("format") or body.get("output_format")
    if not given:
        return {}
    wanted = mapping(given)
    if wanted.get("type") != "json_schema" or not isinstance(wanted.get("schema"), dict):
        odd("output_config.format: must be of type json_schema and have a schema")
    schema = {"name": "answer", "schema": wanted.get("schema"), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
