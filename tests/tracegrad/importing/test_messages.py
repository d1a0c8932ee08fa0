"""Messages of every framework in one shape, and nothing of them lost."""

import json
from typing import Any

import pytest

from tracegrad.importing.call_attributes import call_of, tool_of
from tracegrad.importing.messages import messages_of, with_system
from tracegrad.importing.tool_definitions import tool_definitions

CALL = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": "sky"}}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "blue"}]}
ASKED = {"role": "user", "parts": [{"type": "text", "content": "What colour?"}]}

OPENAI = [
    {"role": "user", "content": "What colour?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"sky"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "blue"},
]
RESPONSES = [
    {"role": "user", "content": [{"type": "input_text", "text": "What colour?"}]},
    {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "look", "arguments": '{"at":"sky"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "blue"},
]
ANTHROPIC = [
    {"role": "user", "content": "What colour?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sky"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "blue"}]},
]
LANGCHAIN = [
    {"type": "human", "content": "What colour?"},
    {
        "type": "ai",
        "content": "",
        "tool_calls": [{"name": "look", "args": {"at": "sky"}, "id": "c1", "type": "tool_call"}],
    },
    {"type": "tool", "content": "blue", "tool_call_id": "c1"},
]
LANGCHAIN_SERIALISED = [
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"], "kwargs": LANGCHAIN[0]},
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"], "kwargs": LANGCHAIN[1]},
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "ToolMessage"], "kwargs": LANGCHAIN[2]},
]
VERCEL = [
    {"role": "user", "content": [{"type": "text", "text": "What colour?"}]},
    {
        "role": "assistant",
        "content": [{"type": "tool-call", "toolCallId": "c1", "toolName": "look", "input": {"at": "sky"}}],
    },
    {
        "role": "tool",
        "content": [
            {"type": "tool-result", "toolCallId": "c1", "toolName": "look", "output": {"type": "text", "value": "blue"}}
        ],
    },
]
GENAI = [ASKED, {"role": "assistant", "parts": [CALL]}, RESULT]


@pytest.mark.parametrize(
    "told",
    [OPENAI, RESPONSES, ANTHROPIC, LANGCHAIN, LANGCHAIN_SERIALISED, VERCEL, GENAI],
    ids=["openai", "responses", "anthropic", "langchain", "langchain serialised", "vercel", "genai"],
)
def test_one_conversation_is_the_same_in_every_dialect(told: list[Any]) -> None:
    assert messages_of(told, "user") == GENAI
    assert messages_of({"messages": told}, "user") == GENAI


def test_gemini() -> None:
    asked = {
        "system_instruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "What colour?"}]},
            {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "look", "args": {"at": "sky"}}}]},
        ],
    }
    assert messages_of(asked, "user") == [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        ASKED,
        {"role": "assistant", "parts": [CALL]},
    ]
    answered = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Blue."}]}, "finishReason": "STOP"}]}
    assert messages_of(answered, "assistant") == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Blue."}], "finish_reason": "STOP"}
    ]


def test_the_items_of_one_answer_are_one_message() -> None:
    answer = {
        "object": "response",
        "instructions": "Be brief.",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "It is day."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Blue."}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"sky"}'},
        ],
    }
    assert messages_of(answer, "assistant") == [
        {
            "role": "assistant",
            "parts": [{"type": "reasoning", "content": "It is day."}, {"type": "text", "content": "Blue."}, CALL],
        }
    ]


def test_choices_keep_why_they_ended() -> None:
    answer = {"choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "Bl"}}]}
    assert messages_of(answer, "assistant") == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Bl"}], "finish_reason": "length"}
    ]


@pytest.mark.parametrize("nothing", [None, "", [], {}, {"messages": []}, {"text": ""}])
def test_nothing_is_no_message(nothing: Any) -> None:
    assert messages_of(nothing, "user") == []


def test_what_is_not_known_stays() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    assert messages_of([{"role": "user", "content": [part]}], "user") == [{"role": "user", "parts": [part]}]
    assert messages_of({"what": 1}, "user") == [{"role": "user", "parts": [{"type": "text", "content": '{"what":1}'}]}]


def test_images() -> None:
    content = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "input_image", "image_url": "https://a/b.png"},
    ]
    assert messages_of([{"role": "user", "content": content}], "user")[0]["parts"] == [
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AA"},
        {"type": "uri", "modality": "image", "uri": "https://a/b.png"},
    ]


def test_instructions_go_before_messages_once() -> None:
    told = with_system([ASKED], "Be brief.")
    assert [one["role"] for one in told] == ["system", "user"]
    assert with_system(told, "Be brief.") == told


def test_tools_of_every_dialect() -> None:
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    expected = [{"type": "function", "name": "look", "description": "See.", "parameters": schema}]
    for told in (
        [{"type": "function", "function": {"name": "look", "description": "See.", "parameters": schema}}],
        [{"type": "function", "name": "look", "description": "See.", "parameters": schema}],
        [{"name": "look", "description": "See.", "input_schema": schema}],
        [
            '{"type":"function","name":"look","description":"See.","inputSchema":{"jsonSchema":'
            + '{"type":"object","properties":{"at":{"type":"string"}}}}}'
        ],
        [{"functionDeclarations": [{"name": "look", "description": "See.", "parameters": schema}]}],
        {"look": '{"description":"See.","parameters":{"type":"object","properties":{"at":{"type":"string"}}}}'},
    ):
        assert tool_definitions(told) == expected, told


def test_traceloop_and_events() -> None:
    numbered = {
        "gen_ai.system": "OpenAI",
        "llm.request.type": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "What colour?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.finish_reason": "tool_calls",
        "gen_ai.completion.0.tool_calls.0.id": "c1",
        "gen_ai.completion.0.tool_calls.0.name": "look",
        "gen_ai.completion.0.tool_calls.0.arguments": '{"at":"sky"}',
        "gen_ai.usage.prompt_tokens": "7",
    }
    call = call_of(numbered)
    assert call is not None
    assert (call.provider, call.model, call.input_tokens, call.output_tokens) == ("OpenAI", "m", 7, None)
    assert call.input_messages == [ASKED]
    assert call.output_messages == [{"role": "assistant", "parts": [CALL], "finish_reason": "tool_calls"}]

    function = {"name": "look", "arguments": '{"at":"sky"}'}
    message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    events = [
        ("gen_ai.user.message", {"content": "What colour?"}),
        ("gen_ai.choice", {"index": 0, "finish_reason": "tool_calls", "message": json.dumps(message)}),
    ]
    told = call_of({"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}, events)
    assert told is not None
    assert (told.input_messages, told.output_messages) == (call.input_messages, call.output_messages)


@pytest.mark.parametrize(
    ("attributes", "name", "call_id"),
    [
        (
            {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "gen_ai.tool.call.id": "c1"},
            "look",
            "c1",
        ),
        ({"openinference.span.kind": "TOOL", "tool.name": "look", "tool_call.id": "c1"}, "look", "c1"),
        ({"ai.operationId": "ai.toolCall", "ai.toolCall.name": "look", "ai.toolCall.id": "c1"}, "look", "c1"),
        ({"traceloop.span.kind": "tool", "traceloop.entity.name": "look"}, "look", None),
        ({"mlflow.spanType": '"TOOL"'}, "the span", None),
    ],
)
def test_tools_runs(attributes: dict[str, Any], name: str, call_id: str | None) -> None:
    found = tool_of(attributes, "the span")
    assert found is not None
    assert (found.name, found.call_id) == (name, call_id)
    assert call_of(attributes) is None


def test_agents_and_embeddings_are_no_calls() -> None:
    for attributes in (
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m", "gen_ai.input.messages": "[]"},
        {"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "m"},
        {"openinference.span.kind": "CHAIN", "llm.model_name": "m"},
        {"ai.operationId": "ai.generateText", "gen_ai.request.model": "m"},
    ):
        assert call_of(attributes) is None
