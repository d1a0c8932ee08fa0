"""A policy's Responses calls over real sockets: what the SDK gets, what the engine is asked, what the spans hold."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from fake_vllm import CONTENT, PROMPT_IDS, FakeVllm
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from sidecar_harness import Harness
from stand_ins import ReceivedSpan

TEXT = "".join(CONTENT)
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": True,
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEXT_EVENTS = [
    *("created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * len(CONTENT)),
    *("output_text.done", "content_part.done", "output_item.done", "completed"),
]
CALL_EVENTS = [
    *("created", "in_progress", "output_item.added", *["function_call_arguments.delta"] * 2),
    *("function_call_arguments.done", "output_item.done", "completed"),
]
CHANGING = {"id", "created_at", "completed_at"}
ADDED_BY_THE_SDK = {"parsed", "parsed_arguments"}


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{harness.url}/rollout/r/v1", api_key="unused", max_retries=0) as sdk:
        yield sdk


def same(value: Any) -> Any:
    """A value without what differs from call to call, or comes from the SDK."""
    if isinstance(value, dict):
        return {name: same(inner) for name, inner in value.items() if name not in CHANGING | ADDED_BY_THE_SDK}
    return [same(one) for one in value] if isinstance(value, list) else value


def assert_exact(span: ReceivedSpan, tokens: int) -> None:
    assert span.name == "chat policy"
    assert span.attributes["gen_ai.provider.name"] == "vllm"
    assert span.attributes["tracegrad.trainable"] is True
    assert span.json("tracegrad.prompt.token_ids") == PROMPT_IDS
    assert span.json("tracegrad.response.token_ids") == [100 + place for place in range(tokens)]
    assert len(span.json("tracegrad.response.logprobs")) == tokens


@pytest.mark.parametrize("tools", [False, True])
async def test_whole_and_streamed_answers_are_one_response(
    client: openai.AsyncOpenAI, harness: Harness, tools: bool
) -> None:
    ask: dict[str, Any] = {"model": "policy", "input": "Hi", "instructions": "Be kind.", "metadata": {"run": "7"}}
    if tools:
        ask["tools"] = [ADD]
    whole = await client.responses.create(**ask)
    Response.model_validate(whole.to_dict(), strict=True)
    events = [event async for event in await client.responses.create(**ask, stream=True)]
    for event in events:
        EVENT.validate_python(event.to_dict())
    assert [event.type.removeprefix("response.") for event in events] == (CALL_EVENTS if tools else TEXT_EVENTS)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert same(last.response.to_dict()) == same(whole.to_dict())
    async with client.responses.stream(**ask) as stream:
        accumulated = await stream.get_final_response()
    assert same(accumulated.to_dict()) == same(whole.to_dict())

    assert whole.id.startswith("resp_")
    assert (whole.status, whole.model, whole.instructions) == ("completed", "policy", "Be kind.")
    assert (whole.metadata, whole.error, whole.incomplete_details) == ({"run": "7"}, None, None)
    assert whole.usage is not None
    assert whole.usage.input_tokens == 3
    (item,) = whole.output
    if item.type == "function_call":
        assert (item.call_id, item.name, item.arguments) == ("call_1", "add", '{"a": 1}')
        assert whole.usage.output_tokens == 7
    else:
        assert item.type == "message"
        assert whole.output_text == accumulated.output_text == TEXT
    spans = await harness.receiver.wait(3)
    seen = [span.attributes["gen_ai.response.id"] for span in spans]
    assert seen == [whole.id, last.response.id, accumulated.id]
    for span in spans:
        assert_exact(span, 7 if tools else 5)
        assert span.attributes["tracegrad.rollout.id"] == "r"
        assert span.json("gen_ai.input.messages") == [
            {"role": "system", "parts": [{"type": "text", "content": "Be kind."}]},
            {"role": "user", "parts": [{"type": "text", "content": "Hi"}]},
        ]


async def test_the_client_sees_nothing_of_what_was_asked_for_the_record(harness: Harness) -> None:
    for stream in (False, True):
        answer = await harness.session.post(
            f"{harness.url}/v1/responses", json={"model": "policy", "input": "Hi", "stream": stream}
        )
        seen = await answer.text()
        assert answer.status == 200
        assert answer.headers["x-tracegrad-policy"] == "policy@0"
        assert answer.content_type == ("text/event-stream" if stream else "application/json")
        assert not [word for word in ("token_ids", "chatcmpl", '"logprob"', "[DONE]") if word in seen]


async def test_a_conversation_continues_from_its_stored_response(
    client: openai.AsyncOpenAI, harness: Harness, fake: FakeVllm
) -> None:
    first = await client.responses.create(model="policy", input="1+1?", tools=[ADD], instructions="Add.")
    result = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
    async with client.responses.stream(  # type: ignore[call-overload]
        model="policy", input=[result], previous_response_id=first.id
    ) as stream:
        second = await stream.get_final_response()
    third = await client.responses.create(model="policy", input="Thanks.", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    told: list[dict[str, Any]] = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        {"role": "assistant", "content": TEXT},
        {"role": "user", "content": "Thanks."},
    ]
    assert fake.requests[0]["messages"] == [{"role": "system", "content": "Add."}, told[0]]
    assert fake.requests[1]["messages"] == told[:3], "instructions are of one response alone"
    assert fake.requests[2]["messages"] == told
    spans = await harness.receiver.wait(3)
    for span, tokens in zip(spans, (7, 5, 5), strict=True):
        assert_exact(span, tokens)
    assert [one["role"] for one in spans[2].json("gen_ai.input.messages")] == [one["role"] for one in told]
    assert spans[2].json("gen_ai.input.messages")[1]["parts"][0]["type"] == "tool_call"


async def test_what_was_not_stored_cannot_be_continued(client: openai.AsyncOpenAI) -> None:
    kept = await client.responses.create(model="policy", input="Hi", store=False)
    assert kept.store is False
    for lost in (kept.id, "resp_unknown"):
        with pytest.raises(openai.BadRequestError, match=f"'{lost}' not found") as caught:
            await client.responses.create(model="policy", input="More", previous_response_id=lost)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.BadRequestError, match="No tool call found for function call output with call_id c9"):
        await client.responses.create(
            model="policy", input=[{"type": "function_call_output", "call_id": "c9", "output": ""}]
        )


async def test_one_tenant_does_not_see_anothers_responses(harness_for: Any, fake: FakeVllm) -> None:
    tenants = [{"name": name, "key": f"key-{name}"} for name in ("a", "b")]
    harness = await harness_for({"name": "policy", "upstream": fake.url, "policy": "policy"}, tenant=tenants)
    url = f"{harness.url}/v1"
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="key-a") as a,
        openai.AsyncOpenAI(base_url=url, api_key="key-b") as b,
    ):
        mine = await a.responses.create(model="policy", input="secret")
        assert (await a.responses.retrieve(mine.id)).id == mine.id
        for refused in (
            b.responses.retrieve(mine.id),
            b.responses.delete(mine.id),
            b.responses.input_items.list(mine.id),
            b.responses.create(model="policy", input=[{"type": "item_reference", "id": mine.output[0].id or ""}]),
        ):
            with pytest.raises(openai.NotFoundError, match="not found"):
                await refused
        with pytest.raises(openai.BadRequestError, match="not found"):
            await b.responses.create(model="policy", input="", previous_response_id=mine.id)
        assert (await a.responses.retrieve(mine.id)).id == mine.id


async def test_stored_responses_are_shown_listed_and_deleted(client: openai.AsyncOpenAI, fake: FakeVllm) -> None:
    first = await client.responses.create(model="policy", input="One")
    again = {"type": "item_reference", "id": first.output[0].id}
    second = await client.responses.create(
        model="policy", input=[again, {"role": "user", "content": "Two"}], previous_response_id=first.id
    )
    assert [one["content"] for one in fake.requests[1]["messages"]] == ["One", TEXT, TEXT, "Two"]
    assert (await client.responses.retrieve(second.id)).to_dict() == second.to_dict()
    listed = client.responses.input_items.list(second.id, order="asc", limit=2)
    items = [item async for item in listed]
    assert [item.type for item in items] == ["message"] * 4
    texts = [item.content[0].text for item in items]
    assert texts == ["One", TEXT, TEXT, "Two"]
    newest = await client.responses.input_items.list(second.id, limit=1)
    assert newest.has_more
    assert [item.id for item in newest.data] == [items[-1].id]
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(second.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        await client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await client.responses.create(model="policy", input="Three", previous_response_id=second.id)


async def test_log_probs_are_shown_where_they_are_asked_for(client: openai.AsyncOpenAI, fake: FakeVllm) -> None:
    ask: dict[str, Any] = {"model": "policy", "input": "Hi", "include": ["message.output_text.logprobs"]}
    whole = await client.responses.create(**ask, top_logprobs=2)
    assert (fake.requests[0]["logprobs"], fake.requests[0]["top_logprobs"]) == (True, 2)
    (part,) = whole.output[0].content
    assert [one.logprob for one in part.logprobs] == [-(100 + place) / 7 for place in range(5)]
    events = [event async for event in await client.responses.create(**ask, top_logprobs=2, stream=True)]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [delta.logprobs[0].token for delta in deltas] == [f"t{100 + place}" for place in range(5)]
    last = events[-1]
    assert last.type == "response.completed"
    assert same(last.response.to_dict()) == same(whole.to_dict())


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_cut_is_incomplete(client: openai.AsyncOpenAI, fake: FakeVllm, stream: bool) -> None:
    fake.finish_reason = "length"
    if stream:
        events = [event async for event in await client.responses.create(model="policy", input="Hi", stream=True)]
        last = events[-1]
        assert last.type == "response.incomplete"
        response = last.response
    else:
        response = await client.responses.create(model="policy", input="Hi")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert response.completed_at is None
    assert (await client.responses.retrieve(response.id)).status == "incomplete"


@pytest.mark.parametrize(
    ("fault", "code"), [({"die_after": 3}, "upstream_died"), ({"stream_error": "out of memory"}, "upstream_error")]
)
async def test_a_stream_that_breaks_ends_in_error_and_failed(
    client: openai.AsyncOpenAI, harness: Harness, fake: FakeVllm, fault: dict[str, Any], code: str
) -> None:
    for name, value in fault.items():
        setattr(fake, name, value)
    events = [event async for event in await client.responses.create(model="policy", input="Hi", stream=True)]
    for event in events:
        EVENT.validate_python(event.to_dict())
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    error, failed = events[-2:]
    assert error.type == "error"
    assert error.code == code
    assert failed.type == "response.failed"
    assert failed.response.status == "failed"
    assert failed.response.error is not None
    assert failed.response.error.message == error.message
    assert failed.response.output_text == "Hello "
    assert [event.sequence_number for event in events] == list(range(len(events)))
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.trainable"] is False
    assert span.attributes["error.type"] == code
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(failed.response.id)


async def test_the_engines_errors_come_in_openais_shape(
    client: openai.AsyncOpenAI, harness: Harness, fake: FakeVllm
) -> None:
    fake.error = (400, "temperature must be non-negative")
    with pytest.raises(openai.BadRequestError, match="temperature must be non-negative"):
        await client.responses.create(model="policy", input="Hi", temperature=-1)
    assert (await harness.receiver.one()).attributes["error.type"] == "400"


async def test_an_aborted_answer_has_failed(client: openai.AsyncOpenAI, harness: Harness, fake: FakeVllm) -> None:
    fake.finish_reason = "abort"
    response = await client.responses.create(model="policy", input="Hi")
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "server_error"
    assert (await harness.receiver.one()).attributes["tracegrad.untrainable.reason"] == "aborted"


async def test_a_system_prompt_is_read_and_replaced_wherever_it_stands(harness: Harness) -> None:
    from sidecar.responses.dialect import ResponsesDialect
    from sidecar.responses.store import ResponseStore
    from sidecar.responses.store_thread import StoreThread

    dialect = ResponsesDialect(StoreThread(ResponseStore(harness.weights / "unused", max_count=1, max_bytes=1)))
    user = {"role": "user", "content": "Hi"}
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "Old."}]}
    for body, found, replaced in (
        ({"input": "Hi"}, "", {"input": "Hi", "instructions": "New."}),
        ({"instructions": "Old.", "input": [developer]}, "Old.", {"instructions": "New.", "input": [developer]}),
        (
            {"input": [user, developer]},
            "Old.",
            {"input": [user, {"role": "developer", "content": "New."}]},
        ),
        ({}, "", {"instructions": "New."}),
    ):
        assert dialect.system(body) == found
        assert dialect.replace_system(body, "New.") == replaced
