"""A model call, or a tool's run, out of a span's attributes, whichever convention they follow.

Known are OpenTelemetry's GenAI conventions (current, and what they replaced: attributes and events), OpenInference,
Traceloop (OpenLLMetry), the Vercel AI SDK and MLflow. Where several tell the same, the one named first wins.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracegrad.importing.foreign import ForeignCall, ForeignTool, Json, Message
from tracegrad.importing.json_text import mapping, parsed, text, whole
from tracegrad.importing.messages import messages_of, with_system
from tracegrad.importing.numbered import tree
from tracegrad.importing.tool_definitions import tool_definitions

Attributes = Mapping[str, Any]
Event = tuple[str, Attributes]
"""The name of a span's event, and its attributes."""

_CALLS = ("chat", "text_completion", "generate_content")
_VERCEL_CALLS = (
    "ai.generateText.doGenerate",
    "ai.streamText.doStream",
    "ai.generateObject.doGenerate",
    "ai.streamObject.doStream",
)
_MODEL = ("gen_ai.request.model", "llm.model_name", "llm.request.model", "ai.model.id", "embedding.model_name")
_PROVIDER = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "ai.model.provider")
_INPUT_TOKENS = (
    "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "llm.usage.prompt_tokens",
    "ai.usage.inputTokens", "ai.usage.promptTokens",
)  # fmt: skip
_OUTPUT_TOKENS = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
    "llm.usage.completion_tokens", "ai.usage.outputTokens", "ai.usage.completionTokens",
)  # fmt: skip
_INPUT = ("gen_ai.input.messages", "gen_ai.prompt", "ai.prompt.messages", "ai.prompt", "llm.prompts")
_ANY_INPUT = ("input.value", "mlflow.spanInputs", "traceloop.entity.input", "input")
_OUTPUT = ("gen_ai.output.messages", "gen_ai.completion", "gen_ai.response.content", "llm.completions")
_ANY_OUTPUT = ("output.value", "mlflow.spanOutputs", "traceloop.entity.output", "output")
_TOOLS = (
    "gen_ai.tool.definitions",
    "gen_ai.request.tools",
    "ai.prompt.tools",
    "llm.request.functions",
    "mlflow.chat.tools",
)
_TOOL_NAMES = (
    "gen_ai.tool.name",
    "tool.name",
    "tool_call.function.name",
    "ai.toolCall.name",
    "traceloop.entity.name",
    "mcp.tool.name",
)
_TOOL_CALL_IDS = ("gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id")


def call_of(attributes: Attributes, events: Sequence[Event] = ()) -> ForeignCall | None:
    """The model call that the span is; None where it is something else."""
    if not _is_call(attributes):
        return None
    output = _output(attributes, events)
    reasons = _reasons(attributes, output)
    if len(output) == len(reasons) == 1:
        output = [{"finish_reason": reasons[0]} | output[0]]
    operation = attributes.get("gen_ai.operation.name")
    return ForeignCall(
        input_messages=_input(attributes, events),
        output_messages=output,
        tools=_tools(attributes),
        operation=operation if operation in _CALLS else "chat",
        provider=_text_of(attributes, _PROVIDER),
        model=_text_of(attributes, _MODEL),
        response_model=_text_of(attributes, ("gen_ai.response.model", "llm.response.model", "ai.response.model")),
        response_id=_text_of(attributes, ("gen_ai.response.id", "ai.response.id")),
        finish_reasons=reasons,
        input_tokens=_whole_of(attributes, _INPUT_TOKENS),
        output_tokens=_whole_of(attributes, _OUTPUT_TOKENS),
    )


def tool_of(attributes: Attributes, span_name: str) -> ForeignTool | None:
    """The tool's run that the span is; None where it is something else."""
    is_tool = (
        attributes.get("gen_ai.operation.name") == "execute_tool"
        or attributes.get("openinference.span.kind") == "TOOL"
        or attributes.get("traceloop.span.kind") == "tool"
        or str(attributes.get("mlflow.spanType")).strip('"') == "TOOL"
        or attributes.get("langfuse.observation.type") == "tool"
        or attributes.get("ai.operationId") == "ai.toolCall"
    )
    if not is_tool:
        return None
    name = _text_of(attributes, _TOOL_NAMES) or span_name.removeprefix("execute_tool ")
    return ForeignTool(name, _text_of(attributes, _TOOL_CALL_IDS))


def _is_call(attributes: Attributes) -> bool:
    operation = attributes.get("gen_ai.operation.name")
    if isinstance(operation, str) and operation:
        return operation in _CALLS
    if kind := attributes.get("openinference.span.kind"):
        return bool(kind == "LLM")
    if "ai.operationId" in attributes:
        return attributes["ai.operationId"] in _VERCEL_CALLS
    return (
        attributes.get("llm.request.type") in ("chat", "completion")
        or str(attributes.get("mlflow.spanType")).strip('"') in ("CHAT_MODEL", "LLM")
        or attributes.get("langfuse.observation.type") == "generation"
        or ("gen_ai.request.model" in attributes and _tells_messages(attributes))
    )


def _tells_messages(attributes: Attributes) -> bool:
    return any(name.startswith(("gen_ai.prompt", "gen_ai.completion", "gen_ai.input.messages")) for name in attributes)


def _input(attributes: Attributes, events: Sequence[Event]) -> Sequence[Message]:
    found = _first_messages("user", [
        _told(attributes, "gen_ai.input.messages"),
        _openinference(attributes, "llm.input_messages"),
        *(_told(attributes, name) for name in _INPUT),
        _of_events(events, _INPUT_EVENTS),
        *(_told(attributes, name) for name in _ANY_INPUT),
    ])  # fmt: skip
    return with_system(found, _told(attributes, "gen_ai.system_instructions"))


def _output(attributes: Attributes, events: Sequence[Event]) -> list[Message]:
    return _first_messages("assistant", [
        _told(attributes, "gen_ai.output.messages"),
        _openinference(attributes, "llm.output_messages"),
        *(_told(attributes, name) for name in _OUTPUT),
        _vercel_answer(attributes),
        _of_events(events, _OUTPUT_EVENTS),
        *(_told(attributes, name) for name in _ANY_OUTPUT),
    ])  # fmt: skip


def _first_messages(role: str, told: Iterable[Any]) -> list[Message]:
    return next((found for one in told if (found := messages_of(one, role))), [])


def _told(attributes: Attributes, name: str) -> Any:
    """The attribute, or (Traceloop) what is told under its name with numbers."""
    return attributes[name] if name in attributes else tree(attributes, name)


def _openinference(attributes: Attributes, name: str) -> list[Json]:
    told = tree(attributes, name)
    told = parsed(told)
    return [_openinference_message(mapping(one)) for one in told] if isinstance(told, list) else []


def _openinference_message(one: Json | Mapping[str, Any]) -> Json:
    message = mapping(one.get("message")) or one
    contents = message.get("contents")
    told: Json = {"role": message.get("role"), "content": message.get("content")}
    if isinstance(contents, list) and contents:
        told["content"] = [_openinference_content(mapping(part)) for part in contents]
    if call_id := message.get("tool_call_id"):
        told["tool_call_id"] = call_id
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        told["tool_calls"] = [mapping(mapping(call).get("tool_call")) or call for call in calls]
    if name := message.get("function_call_name"):
        told["function_call"] = {"name": name, "arguments": message.get("function_call_arguments_json")}
    return {key: value for key, value in told.items() if value is not None}


def _openinference_content(part: Mapping[str, Any]) -> Any:
    told = mapping(part.get("message_content")) or part
    image = mapping(mapping(told.get("image")).get("image")).get("url")
    return {"type": "image_url", "image_url": image} if image else told


def _vercel_answer(attributes: Attributes) -> Json | None:
    answer = attributes.get("ai.response.text") or attributes.get("ai.response.object")
    calls = parsed(attributes.get("ai.response.toolCalls"))
    if answer is None and not calls:
        return None
    message: Json = {"role": "assistant", "content": answer, "tool_calls": calls}
    return message | {"reasoning": attributes.get("ai.response.reasoning")}


_INPUT_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    "gen_ai.content.prompt": "user",
    "gen_ai.client.inference.operation.details": "user",
}
_OUTPUT_EVENTS = {
    "gen_ai.choice": "assistant",
    "gen_ai.content.completion": "assistant",
    "gen_ai.client.inference.operation.details": "assistant",
}


def _of_events(events: Sequence[Event], roles: Mapping[str, str]) -> list[Json]:
    """Messages that instrumentations told in events before they were attributes."""
    messages: list[Json] = []
    for name, attributes in events:
        if (role := roles.get(name)) is None:
            continue
        is_answer = role == "assistant" and roles is _OUTPUT_EVENTS
        whole_of = (
            ("gen_ai.output.messages", "gen_ai.completion") if is_answer else ("gen_ai.input.messages", "gen_ai.prompt")
        )
        held = next((attributes[key] for key in whole_of if key in attributes), None)
        if held is not None:
            messages += messages_of(held, role)
            continue
        told = parsed(attributes.get("message"))
        message: Json = {"role": role} | dict(told if isinstance(told, dict) else attributes)
        message["tool_calls"] = parsed(message.get("tool_calls"))
        if role == "tool":
            message.setdefault("tool_call_id", attributes.get("id"))
        if reason := attributes.get("finish_reason"):
            message["finish_reason"] = reason
        messages.append(message)
    return messages


def _tools(attributes: Attributes) -> list[Json]:
    for name in _TOOLS:
        if found := tool_definitions(_told(attributes, name)):
            return found
    told = tree(attributes, "llm.tools")
    if isinstance(told, list):
        schemas = [mapping(mapping(one).get("tool")).get("json_schema") for one in told]
        if found := tool_definitions(schemas):
            return found
    for name in ("llm.invocation_parameters", "input.value"):
        if found := tool_definitions(mapping(parsed(attributes.get(name))).get("tools")):
            return found
    return []


def _reasons(attributes: Attributes, output: Sequence[Message]) -> list[str]:
    told = parsed(attributes.get("gen_ai.response.finish_reasons", attributes.get("ai.response.finishReason")))
    if told is None:
        told = attributes.get("llm.finish_reason")
    if told:
        return [str(reason) for reason in (told if isinstance(told, list) else [told])]
    return [reason for message in output if (reason := message.get("finish_reason"))]


def _text_of(attributes: Attributes, names: Iterable[str]) -> str | None:
    return next((found for name in names if (found := text(attributes.get(name)))), None)


def _whole_of(attributes: Attributes, names: Iterable[str]) -> int | None:
    return next((found for name in names if (found := whole(attributes.get(name))) is not None), None)
