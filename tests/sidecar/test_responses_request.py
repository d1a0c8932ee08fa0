"""Responses requests as chat completions: what is translated, what is passed on, what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness

from sidecar.dialect import Caller
from sidecar.responses.checks import BadRequest
from sidecar.responses.dialect import ResponsesDialect
from sidecar.responses.store import ResponseStore
from sidecar.responses.store_thread import StoreThread

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
SUB = {"type": "function", "name": "sub", "description": "Subtracts.", "parameters": None}
CHAT_ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": True}}
CHAT_SUB = {"type": "function", "function": {"name": "sub", "description": "Subtracts."}}
USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def dialect(tmp_path: Path) -> ResponsesDialect:
    return ResponsesDialect(StoreThread(ResponseStore(tmp_path / "responses.sqlite", max_count=9, max_bytes=1 << 20)))


def chat(dialect: ResponsesDialect, **body: Any) -> dict[str, Any]:
    exchange = asyncio.run(dialect.open({"model": "policy", "input": "Hi"} | body, Caller()))
    assert exchange is not None
    return exchange.chat


def call(call_id: str, name: str = "add") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def chat_call(call_id: str, name: str = "add") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def output(call_id: str, value: Any = "3") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def think(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def said(text: str) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": parts}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 0.9, "user": "u"}, {"temperature": 0.5, "top_p": 0.9, "user": "u"}),
        ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"truncation": "auto"}, {"truncate_prompt_tokens": -1}),
        ({"truncation": "disabled", "store": False, "metadata": {"a": "b"}, "background": False, "n": 1}, {}),
        ({"top_logprobs": 3}, {}),
        (
            {"top_logprobs": 3, "include": ["message.output_text.logprobs"]},
            {"logprobs": True, "top_logprobs": 3},
        ),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": False, "stream_options": {"include_obfuscation": False}}, {}),
        (
            {"seed": 1, "stop": ["x"], "top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}},
            {"seed": 1, "stop": ["x"], "top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}},
        ),
        ({"return_token_ids": True, "enable_response_messages": True}, {}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        ({"tools": [], "tool_choice": "auto"}, {}),
        ({"tools": [ADD, SUB]}, {"tools": [CHAT_ADD, CHAT_SUB]}),
        (
            {"tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False},
            {"tools": [CHAT_ADD], "tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "name": "add"}},
            {"tools": [CHAT_ADD], "tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        (
            {
                "tools": [ADD, SUB],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "sub"}],
                },
            },
            {"tools": [CHAT_SUB], "tool_choice": "required"},
        ),
    ],
)
def test_settings_are_translated(dialect: ResponsesDialect, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(dialect, **given) == {"model": "policy", "messages": [USER], **expected}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([USER, {"role": "assistant", "content": "Yo"}], [USER, {"role": "assistant", "content": "Yo"}]),
        (
            [{"role": "developer", "content": "A."}, {"role": "system", "content": "B."}, USER],
            [{"role": "system", "content": "A.\n\nB."}, USER],
        ),
        ([USER, {"role": "developer", "content": "Now."}], [USER, {"role": "system", "content": "Now."}]),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What?"},
                        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
                        {"type": "input_image", "image_url": "https://example.org/a.png"},
                    ],
                }
            ],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What?"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
                        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                    ],
                }
            ],
        ),
        (
            [USER, think("Hm."), said("Two."), call("a"), call("b", "sub"), output("a"), output("b", "4")],
            [
                USER,
                {
                    "role": "assistant",
                    "content": "Two.",
                    "reasoning": "Hm.",
                    "tool_calls": [chat_call("a"), chat_call("b", "sub")],
                },
                {"role": "tool", "tool_call_id": "a", "content": "3"},
                {"role": "tool", "tool_call_id": "b", "content": "4"},
            ],
        ),
        (
            [USER, call("a"), output("a"), call("b"), output("b"), said("Done."), said("Truly.")],
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [chat_call("a")]},
                {"role": "tool", "tool_call_id": "a", "content": "3"},
                {"role": "assistant", "content": None, "tool_calls": [chat_call("b")]},
                {"role": "tool", "tool_call_id": "b", "content": "3"},
                {"role": "assistant", "content": "Done."},
                {"role": "assistant", "content": "Truly."},
            ],
        ),
        (
            [USER, call("a"), said("Calling."), output("a", [{"type": "input_text", "text": "3"}])],
            [
                USER,
                {"role": "assistant", "content": "Calling.", "tool_calls": [chat_call("a")]},
                {"role": "tool", "tool_call_id": "a", "content": "3"},
            ],
        ),
        (
            [
                USER,
                {"type": "reasoning", "summary": [], "encrypted_content": "x"},
                said("No."),
                think("Hm."),
                call("a"),
            ],
            [
                USER,
                {"role": "assistant", "content": "No."},
                {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [chat_call("a")]},
            ],
        ),
        (
            [USER, {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
            [USER, {"role": "assistant", "content": "", "refusal": "No."}],
        ),
    ],
)
def test_items_become_messages(
    dialect: ResponsesDialect, given: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert chat(dialect, input=given)["messages"] == expected


def test_instructions_come_first(dialect: ResponsesDialect) -> None:
    assert chat(dialect, instructions="A.")["messages"] == [{"role": "system", "content": "A."}, USER]
    items = [{"role": "developer", "content": "B."}, USER]
    assert chat(dialect, instructions="A.", input=items)["messages"][0]["content"] == "A.\n\nB."


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"background": True}, "background", "foreground"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "instructions"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "leave"),
        ({"n": 2}, "n", "several times"),
        ({"messages": []}, "messages", "`input`"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"response_format": {"type": "text"}}, "response_format", "text.format"),
        ({"input": None}, "input", "missing"),
        ({"input": []}, "input", "missing"),
        ({"input": None, "instructions": "Be kind."}, "input", "missing"),
        ({"input": 7}, "input", "string or a list"),
        ({"input": ["Hi"]}, "input", "string or a list"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role", "must be one of"),
        ({"input": [{"role": "user"}]}, "input[0].content", "parts"),
        ({"input": [{"type": "computer_call"}]}, "input[0]", "computer_call"),
        ({"input": [USER, {"type": "function_call", "name": "add"}]}, "input[1].call_id", "missing"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", "not found"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0]",
            "input_file",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0]",
            "image_url",
        ),
        ({"instructions": 7}, "instructions", "string"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "declare a function tool"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
        ({"tool_choice": "required"}, "tool_choice", "no `tools`"),
        ({"tool_choice": "sometimes"}, "tool_choice", "must be auto"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice", "sub"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "grammar"),
    ],
)
def test_what_a_policy_cannot_do_is_refused(
    dialect: ResponsesDialect, given: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(BadRequest, match=message.replace("[", r"\[")) as caught:
        chat(dialect, **given)
    assert caught.value.param == param


async def test_a_refusal_reaches_the_client_and_the_record(harness: Harness, fake: FakeVllm) -> None:
    body = {"model": "policy", "input": "Hi", "tools": [{"type": "mcp", "authorization": "Bearer secret-token"}]}
    answer = await harness.session.post(f"{harness.url}/v1/responses", json=body)
    assert answer.status == 400
    error = (await answer.json())["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "tools[0]", "unsupported_tool")
    assert fake.requests == []
    span = await harness.receiver.one()
    assert span.attributes["error.type"] == "unsupported_tool"
    assert span.json("gen_ai.input.messages") == [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
    assert "secret-token" not in str(span)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"instructions": "Be kind."}, "input", "missing_required_parameter"),
        ({"instructions": "Be kind.", "input": []}, "input", "missing_required_parameter"),
        ({"input": "Hi", "instructions": 5}, "instructions", "invalid_type"),
    ],
)
async def test_a_request_that_asks_nothing_is_no_call(
    harness: Harness, fake: FakeVllm, body: dict[str, Any], param: str, code: str
) -> None:
    answer = await harness.session.post(f"{harness.url}/v1/responses", json={"model": "policy", **body})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], error["code"]) == (400, param, code)
    assert fake.requests == []
