"""How the parts of an Anthropic request become a chat completion, and its answer a message."""

from typing import Any

import pytest

from sidecar.anthropic.answer import message
from sidecar.anthropic.request import as_chat, to_chat
from sidecar.anthropic.stream import MessageReader, MessageWriter
from sidecar.dialect import Refusal
from sidecar.sse import EventReader

PICTURE = {"type": "base64", "media_type": "image/png", "data": "QUJD"}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return to_chat({"model": "m", "max_tokens": 5, "messages": list(messages)} | fields)


def user(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def test_a_conversation_with_tools_and_pictures() -> None:
    asked = chat(
        user({"type": "text", "text": "Look"}, {"type": "image", "source": PICTURE}),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I "},
                {"type": "text", "text": "look."},
                {"type": "tool_use", "id": "t1", "name": "see", "input": {"at": "caf\u00e9"}},
                {"type": "tool_use", "id": "t2", "name": "hear", "input": {}},
            ],
        },
        user(
            {"type": "tool_result", "tool_use_id": "t1", "content": "a cat"},
            {
                "type": "tool_result",
                "tool_use_id": "t2",
                "is_error": True,
                "content": [
                    {"type": "text", "text": "deaf"},
                    {"type": "text", "text": "sorry"},
                    {"type": "image", "source": {"type": "url", "url": "https://made.up/a.png"}},
                ],
            },
            {"type": "text", "text": "And?"},
        ),
    )
    assert asked["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
            ],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning": "Hm.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "see", "arguments": '{"at": "caf\u00e9"}'}},
                {"id": "t2", "type": "function", "function": {"name": "hear", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "a cat"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: deaf\nsorry"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "https://made.up/a.png"}},
                {"type": "text", "text": "And?"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("Be kind.", "Be kind."),
        (
            [
                {"type": "text", "text": "x-anthropic-billing-header: cch=4f1d;"},
                {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be brief."},
            ],
            "Be kind.\n\nBe brief.",
        ),
    ],
)
def test_the_system_prompt_comes_first(system: Any, text: str) -> None:
    assert chat(user({"type": "text", "text": "Hi"}), system=system)["messages"] == [
        {"role": "system", "content": text},
        {"role": "user", "content": "Hi"},
    ]


def test_instructions_in_the_middle_stay_there() -> None:
    blocks = [{"type": "text", "text": "Now"}, {"type": "text", "text": "in French."}]
    messages = chat({"role": "user", "content": "Hi"}, {"role": "system", "content": blocks})["messages"]
    assert messages[1] == {"role": "system", "content": "Now\n\nin French."}


def test_an_assistants_last_message_is_gone_on_with() -> None:
    asked = chat({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "{"})
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    assert "continue_final_message" not in chat({"role": "user", "content": "Hi"})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "tool", "name": "add"}, {"tool_choice": {"type": "function", "function": {"name": "add"}}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_tool_choices(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    asked = chat(user({"type": "text", "text": "Hi"}), tool_choice=given)
    assert {name: asked.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_structured_outputs(where: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "schema": schema}
    asked = chat(
        user({"type": "text", "text": "Hi"}), **{where: {"format": wanted} if where == "output_config" else wanted}
    )
    assert asked["response_format"]["json_schema"] == {"name": "answer", "schema": schema, "strict": True}


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking": {"type": "adaptive"}}, {}),
        (
            {"thinking": {"type": "enabled"}, "chat_template_kwargs": {"enable_thinking": False, "x": 1}},
            {"chat_template_kwargs": {"enable_thinking": False, "x": 1}},
        ),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"metadata": {"user_id": "u"}, "service_tier": "auto"}, {"user": "u"}),
    ],
)
def test_what_else_is_asked_for(given: dict[str, Any], fields: dict[str, Any]) -> None:
    plain = chat(user({"type": "text", "text": "Hi"}))
    assert chat(user({"type": "text", "text": "Hi"}), **given) == plain | fields


ODD: tuple[dict[str, Any], ...] = (
    {},
    {"messages": "x", "system": 7, "tools": {}, "metadata": [], "thinking": "yes", "output_config": []},
    {"messages": [None, {}, {"role": "user"}, {"role": "assistant", "content": 3}, {"role": {}, "content": "x"}]},
    {"messages": [user({}, {"type": "tool_result"}, {"type": ["x"]}, {"type": "image"}, "text")]},
    {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use", "id": "s"}, {"type": "text"}]}]},
    {"messages": [user({"type": "document", "source": {"type": "text"}})], "tools": [{"type": "web_search_20250305"}]},
    {"messages": [user({"type": "tool_result", "content": [{"type": "document"}]})], "tool_choice": {"type": 3}},
)


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_what_is_odd_is_refused_for_the_engine_and_kept_for_the_record(body: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        to_chat(body)
    assert isinstance(as_chat(body)["messages"], list)


def test_a_document_stays_in_the_record() -> None:
    document = {"type": "document", "source": {"type": "text", "data": "long"}}
    assert as_chat({"messages": [user(document)]})["messages"] == [{"role": "user", "content": [document]}]


def completion(finish: str | None, **choice: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "Hi"} | choice.pop("message", {})
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    choices = [{"index": 0, "message": said, "finish_reason": finish, **choice}]
    return {"id": "chatcmpl-7", "model": "m", "choices": choices, "usage": usage}


@pytest.mark.parametrize(
    ("finish", "extra", "reason", "sequence"),
    [
        ("stop", {}, "end_turn", None),
        ("stop", {"stop_reason": 151645}, "end_turn", None),
        ("stop", {"stop_reason": "END"}, "stop_sequence", "END"),
        ("length", {"stop_reason": None}, "max_tokens", None),
        ("tool_calls", {}, "tool_use", None),
        ("stop", {"message": {"tool_calls": [{"id": "t", "function": {"name": "add"}}]}}, "tool_use", None),
        ("content_filter", {}, "refusal", None),
        ("stop", {"message": {"content": None, "refusal": "No."}}, "refusal", None),
        ("abort", {}, None, None),
        ("repetition", {}, "end_turn", None),
    ],
)
def test_why_an_answer_ended(finish: str, extra: dict[str, Any], reason: str | None, sequence: str | None) -> None:
    told = message(completion(finish, **extra))
    assert (told["stop_reason"], told["stop_sequence"]) == (reason, sequence)


def test_what_came_from_the_prefix_cache_is_counted_apart() -> None:
    assert message(completion("stop"))["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (None, {}),
        ('{"a": ', {"INVALID_JSON": '{"a": '}),
        ("[1]", {"INVALID_JSON": "[1]"}),
    ],
)
def test_a_tools_input_is_an_object(arguments: str | None, given: dict[str, Any]) -> None:
    call = {"id": "t", "type": "function", "function": {"name": "add", "arguments": arguments}}
    told = message(completion("tool_calls", message={"content": None, "tool_calls": [call]}))
    assert told["content"] == [{"type": "tool_use", "id": "t", "name": "add", "input": given}]


def call(index: int, arguments: str, **head: Any) -> dict[str, Any]:
    name = {"name": head.pop("name")} if "name" in head else {}
    return {"tool_calls": [{"index": index, "function": {**name, "arguments": arguments}, **head}]}


def test_a_stream_of_everything_is_the_whole_message() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning": "Let me "},
        {"reasoning": "see."},
        {"content": "I "},
        {"content": "add."},
        call(0, "", id="t1", name="add"),
        call(0, '{"a"'),
        {"content": " Later."},
        call(0, ": 1}"),
        call(1, "{}", id="t2", name="sub"),
        {},
    ]
    writer, written = MessageWriter(), b""
    head = {"id": "chatcmpl-7", "model": "m"}
    for place, delta in enumerate(deltas):
        finish = "tool_calls" if place == len(deltas) - 1 else None
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        usage = {"prompt_tokens": 9, "completion_tokens": place}
        written += writer.chunk({**head, "choices": [choice], "usage": usage})
    written += writer.chunk({**head, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 12}})
    written += writer.end()
    events = EventReader().feed(written)
    reader = MessageReader()
    for event in events:
        reader.read(event)
    assert reader.done
    answer = reader.answer()
    (choice_read,) = answer.choices
    assert choice_read.message == {
        "role": "assistant",
        "content": "I add. Later.",
        "reasoning": "Let me see.",
        "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            {"id": "t2", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
        ],
    }
    assert (answer.id, answer.prompt_tokens, answer.completion_tokens) == ("msg_7", 9, 12)
    assert choice_read.finish_reason == "tool_calls"
    kinds = [event.raw.split(b"\n")[0].removeprefix(b"event: ").decode() for event in events]
    depth = 0
    for kind in kinds:
        depth += {"content_block_start": 1, "content_block_stop": -1}.get(kind, 0)
        assert depth in (0, 1), "blocks follow one another"
    assert kinds.count("content_block_start") == 5
    assert kinds[-2:] == ["message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("system", one) for one in (5, {}, [5], ["Hi"], [{"type": "text"}], [{"type": "image", "source": {}}])),
        *(("thinking", one) for one in (5, "enabled", [])),
        *(("metadata", one) for one in (5, [], {"user_id": 5})),
        *((name, 5) for name in ("output_config", "tool_choice", "chat_template_kwargs")),
    ],
)
def test_a_wrong_type_is_refused_and_named(field: str, value: Any) -> None:
    with pytest.raises(Refusal, match=f"{field}.*required") as caught:
        chat({"role": "user", "content": "Hi"}, **{field: value})
    assert caught.value.status == 400
    assert chat({"role": "user", "content": "Hi"}, **{field: None}) == chat({"role": "user", "content": "Hi"})
