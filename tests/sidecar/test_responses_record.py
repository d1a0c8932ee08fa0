"""Responses of providers pass through; their spans tell what was asked and answered, whole or streamed."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sidecar_harness import Harness, listening

from sidecar.responses.dialect import ResponsesDialect
from sidecar.responses.record import ResponsesReader, read_response
from sidecar.responses.store import ResponseStore
from sidecar.responses.store_thread import StoreThread
from sidecar.sse import Event, EventReader

RECORDED = Path(__file__).parents[2] / "../shared/fixtures/openai_http/interactions.jsonl"
needs_recordings = pytest.mark.skipif(not RECORDED.exists(), reason="needs the shared fixtures beside the checkout")

ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Two.", "annotations": []}, {"type": "refusal", "refusal": "No."}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": "{}"},
]
RESPONSE: dict[str, Any] = {
    "id": "resp_p",
    "model": "gpt-x",
    "status": "completed",
    "output": ITEMS,
    "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12},
}


def event(kind: str, **fields: Any) -> Event:
    data = json.dumps({"type": kind, **fields}).encode()
    return EventReader().feed(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n")[0]


def test_a_response_is_one_choice() -> None:
    answer = read_response(RESPONSE)
    assert (answer.id, answer.model, answer.prompt_tokens, answer.completion_tokens) == ("resp_p", "gpt-x", 5, 7)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message == {
        "role": "assistant",
        "reasoning": "Hm.",
        "content": [ITEMS[1], {"type": "text", "text": "Two."}],
        "refusal": "No.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
    }


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"output": ITEMS[2:3]}, "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "failed"}, "error"),
        ({"status": "in_progress"}, None),
    ],
)
def test_a_status_is_a_finish_reason(changed: dict[str, Any], reason: str | None) -> None:
    assert read_response(RESPONSE | changed).choices[0].finish_reason == reason


def test_what_is_odd_is_left_out() -> None:
    for odd in ({}, {"output": 7, "usage": []}, {"output": [{"type": "message", "content": "x"}, 3], "status": []}):
        read_response(odd)
    dialect = ResponsesDialect(StoreThread(ResponseStore(Path("/nonexistent"), max_count=1, max_bytes=1)))
    for body in (
        {},
        {"input": 7, "tools": 7, "text": 7, "reasoning": 7, "include": 7, "tool_choice": {"type": "allowed_tools"}},
        {"input": [7, {}, {"role": []}, {"type": "message", "content": 7}, {"type": "mcp_call", "id": 4}]},
        {"input": [{"type": "function_call"}, {"type": "reasoning"}, {"role": "assistant", "content": None}]},
        {"input": "x", "tools": [{"type": "mcp", "name": [], "headers": {"k": "secret"}}], "tool_choice": {"tools": 3}},
    ):
        assert "secret" not in json.dumps(dialect.as_chat(body))
        dialect.system(body)


def test_a_stream_is_read_to_wherever_it_came() -> None:
    reader = ResponsesReader()
    reader.read(event("response.created", response=RESPONSE | {"status": "in_progress", "output": [], "usage": None}))
    reader.read(event("response.output_item.added", output_index=0, item=ITEMS[0] | {"summary": []}))
    reader.read(event("response.output_item.done", output_index=0, item=ITEMS[0]))
    reader.read(event("response.output_item.added", output_index=1, item=ITEMS[2] | {"content": []}))
    for piece in ("Tw", "o."):
        reader.read(event("response.output_text.delta", output_index=1, delta=piece))
    reader.read(event("response.output_item.added", output_index=2, item=ITEMS[3] | {"arguments": ""}))
    reader.read(event("response.function_call_arguments.delta", output_index=2, delta='{"a'))
    assert not reader.done
    partial = reader.answer()
    assert (partial.id, partial.completion_tokens) == ("resp_p", None)
    (choice,) = partial.choices
    assert choice.finish_reason is None
    assert choice.message["reasoning"] == "Hm."
    assert choice.message["content"] == [{"type": "text", "text": "Two."}]
    assert choice.message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a'}
    reader.read(event("response.completed", response=RESPONSE))
    assert reader.done
    assert reader.answer() == read_response(RESPONSE)


@pytest.mark.parametrize(
    "failure",
    [
        event("error", message="no luck", code="server_error"),
        event("error", error={"message": "no luck"}),
        event("response.failed", response=RESPONSE | {"status": "failed", "error": {"message": "no luck"}}),
    ],
)
def test_a_failure_in_a_stream_is_told(failure: Event) -> None:
    reader = ResponsesReader()
    reader.read(failure)
    assert reader.error == "no luck"


async def play(given: dict[str, Any], harness_for: Any) -> Any:
    """Play one recorded exchange through a sidecar that routes it to a provider. Returns its span."""

    async def answer(request: web.Request) -> web.Response:
        text = given["response"] if given["response_kind"] == "sse" else json.dumps(given["response"])
        kind = "text/event-stream" if given["response_kind"] == "sse" else "application/json"
        return web.Response(status=given["status"], text=text, content_type=kind)

    app = web.Application()
    app.router.add_post("/v1/responses", answer)
    async with listening(app) as upstream:
        harness: Harness = await harness_for({"name": "*", "upstream": upstream})
        async with harness.session.post(f"{harness.url}/v1/responses", json=given["request"]) as response:
            await response.read()
        return await harness.receiver.one()


@needs_recordings
@pytest.mark.parametrize("kind", ["json", "sse"])
async def test_a_recorded_exchange_has_its_facts_in_the_span(harness_for: Any, kind: str) -> None:
    lines = (json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines())
    given = next(
        one
        for one in lines
        if one["api"] == "responses" and one["response_kind"] == kind and one["status"] == 200
        if one["request"].get("instructions")
    )
    span = await play(given, harness_for)
    assert span.attributes["gen_ai.provider.name"] == "openai"
    assert span.attributes["tracegrad.untrainable.reason"] == "passthrough"
    first = span.json("gen_ai.input.messages")[0]
    assert first == {"role": "system", "parts": [{"type": "text", "content": given["request"]["instructions"]}]}
    assert span.attributes["gen_ai.response.id"].startswith("resp_")
    assert span.attributes["gen_ai.usage.input_tokens"] > 0
    assert span.json("gen_ai.output.messages")[0]["parts"]


@needs_recordings
def test_every_recorded_exchange_is_read() -> None:
    dialect = ResponsesDialect(StoreThread(ResponseStore(Path("/nonexistent"), max_count=1, max_bytes=1)))
    read = 0
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["api"] != "responses" or one["status"] != 200:
            continue
        read += 1
        chat = dialect.as_chat(one["request"])
        given = one["request"]["input"]
        assert chat["messages"] or given == []
        assert len(chat.get("tools", [])) == len(one["request"].get("tools") or [])
        if one["response_kind"] == "json":
            answer, final = dialect.read(one["response"]), one["response"]
        else:
            reader = dialect.reader()
            events = EventReader().feed(one["response"].encode())
            for event in events:
                reader.read(event)
            assert reader.done
            assert reader.error is None
            answer, final = reader.answer(), json.loads(events[-1].data or b"")["response"]
            partial = dialect.reader()
            for event in events[:-1]:
                partial.read(event)
            assert [choice.message for choice in partial.answer().choices] == [
                choice.message for choice in answer.choices
            ], "the events add up to the response"
        assert answer.id == final.get("id")
        assert answer.completion_tokens == (final.get("usage") or {}).get("output_tokens")
        called = [item["call_id"] for item in final.get("output", []) if item["type"] == "function_call"]
        message = answer.choices[0].message if answer.choices else {}
        assert [call["id"] for call in message.get("tool_calls", [])] == called
    assert read > 70
