"""Chat answers as responses: every kind of item, whole and cut into chunks anywhere, as OpenAI's types have them."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from sidecar.responses.answer import Asked, whole_response
from sidecar.responses.ids import Ids, response_of
from sidecar.responses.stream import ResponsesWriter
from sidecar.sse import EventReader

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 9,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 16},
    "completion_tokens_details": {"reasoning_tokens": 4},
}
LOGPROBS = {"include": ["message.output_text.logprobs"]}


def asked(**body: Any) -> Asked:
    return Asked({"model": "policy", "input": "Hi"} | body, Ids("0" * 32), 1, created_at=1)


def chat(message: dict[str, Any], finish_reason: str | None = "stop", entries: list[Any] | None = None) -> Any:
    logprobs = None if entries is None else {"content": entries}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "model": "m", "choices": [choice | {"logprobs": logprobs}], "usage": USAGE}


def tool_call(place: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def deltas(message: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """The deltas of a message in the order in which an engine sends them."""
    found: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning", "content", "refusal"):
        found += [{name: piece} for piece in cut(message.get(name) or "", size)]
    for index, call in enumerate(message.get("tool_calls") or []):
        head = call | {"index": index, "function": call["function"] | {"arguments": ""}}
        found.append({"tool_calls": [head]})
        for piece in cut(call["function"]["arguments"], size):
            found.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return found


def stream(writer: ResponsesWriter, message: dict[str, Any], finish_reason: str | None, size: int) -> list[Any]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m"}
    written = [
        writer.chunk(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for delta in deltas(message, size)
    ]
    written.append(writer.chunk(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]}))
    written.append(writer.chunk(head | {"choices": [], "usage": USAGE}))
    written.append(writer.end())
    events = [json.loads(event.data or b"") for event in EventReader().feed(b"".join(written))]
    for event in events:
        EVENT.validate_python(event)
    return events


def untimed(response: dict[str, Any]) -> dict[str, Any]:
    return response | {"completed_at": None}


MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "reasoning": st.text(min_size=1),
        "content": st.text(),
        "refusal": st.text(min_size=1),
        "tool_calls": st.lists(st.sampled_from(["add", "sub"]), max_size=3).map(
            lambda names: [tool_call(place, name, json.dumps({"n": place})) for place, name in enumerate(names)]
        ),
    },
)


@settings(max_examples=200, deadline=None)
@given(MESSAGES, st.integers(1, 7), st.sampled_from(["stop", "tool_calls", "length", "content_filter", "abort", None]))
def test_a_stream_says_what_the_whole_answer_says(message: dict[str, Any], size: int, reason: str | None) -> None:
    kept: list[dict[str, Any]] = []
    whole = whole_response(asked(), chat(message, reason))
    Response.model_validate(whole)
    events = stream(ResponsesWriter(asked(), kept.append), message, reason, size)
    assert untimed(events[-1]["response"]) == untimed(kept[0]) == untimed(whole)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == f"response.{whole['status']}"
    # What the events say piece by piece is what they say at the end.
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["item"]["id"] for event in added] == [item["id"] for item in done]
    assert [event["output_index"] for event in added] == list(range(len(done)))
    for item in done:
        pieces = "".join(event["delta"] for event in events if event.get("item_id") == item["id"] and "delta" in event)
        parts = item.get("content") or []
        texts = [part.get("text", part.get("refusal")) for part in parts]
        assert pieces == ("".join(texts) if item["type"] != "function_call" else item["arguments"])


def test_every_kind_of_item_has_its_events_in_order() -> None:
    message = {"reasoning": "Hm.", "content": "Yes", "refusal": "No", "tool_calls": [tool_call(0, "add", "{}")]}
    events = stream(ResponsesWriter(asked(), lambda _: None), message, "tool_calls", 100)
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"),
        *("content_part.added", "refusal.delta", "refusal.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert {response_of(item["id"]) for item in output} == {events[-1]["response"]["id"]}


def test_a_response_repeats_its_request_and_counts_its_tokens() -> None:
    tools = [{"type": "function", "name": "add", "parameters": {}, "strict": True}]
    given: dict[str, Any] = {
        **{"instructions": "A.", "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.9, "tools": tools},
        **{"tool_choice": "required", "parallel_tool_calls": False, "metadata": {"a": "b"}, "store": False},
        **{"truncation": "auto", "user": "u", "previous_response_id": "resp_1", "top_logprobs": 2},
        **{"text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}},
    }
    response = whole_response(asked(**given), chat({"content": "{}"}))
    assert {name: response[name] for name in given} == given | {
        "text": {"format": {"type": "json_object"}, "verbosity": None},
        "reasoning": {"effort": "low", "summary": None},
    }
    assert response["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 29,
    }


@pytest.mark.parametrize(
    ("tokens", "message", "own"),
    [
        (["Hi", "!", "<end>"], {"content": "Hi!"}, ["Hi", "!"]),
        (["Hi", " Hi", "</think>", "Hi", "<end>"], {"reasoning": "Hi Hi", "content": "Hi"}, ["Hi"]),
        (["Ok", "<tool_call>", '{"a": "Ok"}'], {"content": "Ok", "tool_calls": [tool_call(0, "f", "{}")]}, ["Ok"]),
        (["\ufffd", "\ufffd", "<end>"], {"content": "\u2713"}, ["\ufffd", "\ufffd", "<end>"]),
    ],
)
def test_log_probs_are_those_of_the_text(tokens: list[str], message: dict[str, Any], own: list[str]) -> None:
    tops = [{"token": "x", "logprob": -2.0, "bytes": None}]
    entries = [{"token": one, "logprob": -1.0, "bytes": [1], "top_logprobs": tops} for one in tokens]
    response = whole_response(asked(**LOGPROBS), chat(message, entries=entries))
    Response.model_validate(response)
    (item,) = (item for item in response["output"] if item["type"] == "message")
    (part,) = item["content"]
    assert [entry["token"] for entry in part["logprobs"]] == own
    assert part["logprobs"][0]["top_logprobs"] == [{"token": "x", "logprob": -2.0, "bytes": []}]
    unasked = whole_response(asked(), chat(message, entries=entries))
    assert 'logprob"' not in json.dumps(unasked)


def test_calls_that_come_in_turns_keep_their_own_arguments() -> None:
    writer = ResponsesWriter(asked(), lambda _: None)
    head = tool_call(0, "add", ""), tool_call(1, "sub", "")
    parts = [
        *({"index": place, **one} for place, one in enumerate(head)),
        {"index": 0, "function": {"arguments": "{0}"}},
        {"index": 1, "function": {"arguments": "{1}"}},
    ]
    for part in parts:
        writer.chunk({"choices": [{"index": 0, "delta": {"tool_calls": [part]}, "finish_reason": None}]})
    writer.chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    last = json.loads(EventReader().feed(writer.end())[-1].data or b"")
    assert [item["arguments"] for item in last["response"]["output"]] == ["{0}", "{1}"]


def test_an_error_before_the_first_chunk_still_begins_a_response() -> None:
    written = ResponsesWriter(asked(), lambda _: None).error("gone", "upstream_died")
    events = [json.loads(event.data or b"") for event in EventReader().feed(written)]
    assert [event["type"] for event in events] == [
        *("response.created", "response.in_progress", "error", "response.failed")
    ]
    for event in events:
        EVENT.validate_python(event)
