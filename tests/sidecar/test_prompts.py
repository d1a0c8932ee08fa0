"""Prompt overrides through the whole sidecar: what the model is told, what the span says, and who stays on what."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import Harness, listening

AGENT = "You are a writer."


async def put(harness: Harness, name: str, body: Any) -> tuple[int, dict[str, Any]]:
    answer = await harness.session.put(f"{harness.admin}/prompts/{name}", data=orjson.dumps(body))
    return answer.status, await answer.json()


async def given(harness: Harness, name: str, *texts: str, **more: Any) -> None:
    """A prompt whose versions 1, 2, ... have these texts and equal weights."""
    variants = [{"version": number, "text": text} for number, text in enumerate(texts, 1)]
    status, told = await put(harness, name, {"variants": variants} | more)
    assert status == 200, told


def asking(system: Any = AGENT, role: str = "system") -> dict[str, Any]:
    """A chat request; `system` None: without a system prompt."""
    messages = [] if system is None else [{"role": role, "content": system}]
    return {"messages": [*messages, {"role": "user", "content": "Hi"}]}


async def test_the_system_prompt_is_substituted_and_stamped(harness: Harness, fake: FakeVllm) -> None:
    await given(harness, "writer", "Write well.", match={"system": "writer"})
    await harness.chat(asking(), at="/rollout/r1/v1")
    assert fake.requests[0]["messages"] == [
        {"role": "system", "content": "Write well."},
        {"role": "user", "content": "Hi"},
    ]
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.prompt.name"] == "writer"
    assert span.attributes["tracegrad.prompt.version"] == 1
    assert span.attributes["tracegrad.trainable"] is True
    assert span.json("gen_ai.input.messages")[0]["parts"] == [{"type": "text", "content": "Write well."}]


async def test_a_call_that_no_prompt_means_is_left_as_it_is(harness: Harness, fake: FakeVllm) -> None:
    await given(harness, "reader", "Read.", match={"system": "reader"})
    await given(harness, "off", "Off.", enabled=False)
    await harness.chat(asking())
    assert fake.requests[0]["messages"] == asking()["messages"]
    assert "tracegrad.prompt.name" not in (await harness.receiver.one()).attributes


@pytest.mark.parametrize(
    ("request_body", "sent"),
    [
        (asking(None), {"role": "system", "content": "New."}),
        (asking([{"type": "text", "text": "You are "}, {"type": "text", "text": "old"}]), {"content": "New."}),
        (asking("You are old", "developer"), {"role": "developer", "content": "New."}),
    ],
)
async def test_however_the_agent_wrote_its_own(
    harness: Harness, fake: FakeVllm, request_body: dict[str, Any], sent: dict[str, Any]
) -> None:
    await given(harness, "any", "New.")
    await harness.chat(request_body)
    first, last = fake.requests[0]["messages"]
    assert sent.items() <= first.items()
    assert last == {"role": "user", "content": "Hi"}
    assert (await harness.receiver.one()).attributes["tracegrad.prompt.version"] == 1


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("{system} Be brief.", "You are a writer. Be brief."),
        ('Answer {"a": {}} {{system}} {other}', 'Answer {"a": {}} {system} {other}'),
    ],
)
async def test_a_text_may_hold_the_agents_own(harness: Harness, fake: FakeVllm, text: str, becomes: str) -> None:
    await given(harness, "any", text)
    await harness.chat(asking())
    assert fake.requests[0]["messages"][0]["content"] == becomes


async def test_a_control_variant_changes_no_byte_but_is_stamped(harness: Harness, fake: FakeVllm) -> None:
    await given(harness, "any", "{system}")
    parts = asking([{"type": "text", "text": AGENT, "cache_control": {"type": "ephemeral"}}])
    for body in (parts, asking(None)):
        await harness.chat(body)
        assert fake.requests[-1]["messages"] == body["messages"]
    for span in await harness.receiver.wait(2):
        assert span.attributes["tracegrad.prompt.version"] == 1


async def test_matchers_must_all_hold_and_the_first_by_name_wins(harness: Harness, fake: FakeVllm) -> None:
    await given(harness, "c", "third")
    await given(harness, "a", "first", match={"model": "policy", "agent": "w.*", "system": "writer$|writer\\."})
    await given(harness, "b", "second", match={"model": "pol*", "agent": "writer|editor"})
    for agent, system in (("writer", AGENT), ("writer", "Other"), ("editor", AGENT), ("subwriter", AGENT), ("", AGENT)):
        await harness.chat(asking(system), x_tracegrad_agent=agent)
    told = [one["messages"][0]["content"] for one in fake.requests]
    assert told == ["first", "second", "second", "third", "third"]


async def test_embeddings_and_broken_messages_are_never_touched(harness: Harness, fake: FakeVllm) -> None:
    await given(harness, "any", "New.")
    answer = await harness.session.post(f"{harness.url}/v1/embeddings", json={"model": "policy", "input": "x"})
    assert answer.status == 200
    assert "tracegrad.prompt.name" not in (await harness.receiver.one()).attributes
    for messages in ("text", {"role": "user"}, None):
        assert (await harness.chat({"messages": messages})).status < 500
        assert fake.requests[-1]["messages"] == messages or messages is None


PROVIDED = {
    "chat/completions": asking(),
    "messages": {"system": AGENT, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"instructions": AGENT, "input": "Hi"},
}


@pytest.mark.parametrize("path", PROVIDED)
async def test_calls_of_a_provider_get_them_too(harness_for: Any, path: str) -> None:
    got: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.json_response({"id": "x"})

    app = web.Application()
    app.router.add_post("/v1/{path:.*}", answer)
    async with listening(app) as upstream:
        harness = await harness_for({"name": "*", "upstream": upstream})
        await given(harness, "writer", "Write well.", match={"system": "^You are a writer.$"})
        body = {"model": "big"} | PROVIDED[path]
        await harness.session.post(f"{harness.url}/v1/{path}", json=body)
        await harness.session.post(
            f"{harness.url}/v1/{path}", json=orjson.loads(orjson.dumps(body).replace(b"wr", b"W"))
        )
        spans = await harness.receiver.wait(2)
    expected = orjson.loads(orjson.dumps(body).replace(AGENT.encode(), b"Write well."))
    if path == "messages":
        assert got[0]["system"] in ("Write well.", [{"type": "text", "text": "Write well."}])
        assert got[0]["messages"] == expected["messages"]
    else:
        assert got[0] == expected
    assert [span.attributes.get("tracegrad.prompt.name") for span in spans] == ["writer", None]
    assert {span.attributes["tracegrad.untrainable.reason"] for span in spans} == {"passthrough"}


@pytest.mark.parametrize("path", ["messages", "responses"])
async def test_translated_calls_of_a_policy_get_them_too(harness: Harness, fake: FakeVllm, path: str) -> None:
    await given(harness, "writer", "Write well.", match={"system": "writer"})
    answer = await harness.session.post(f"{harness.url}/v1/{path}", json={"model": "policy"} | PROVIDED[path])
    assert answer.status == 200, await answer.text()
    assert fake.requests[0]["messages"][0] in (
        {"role": "system", "content": "Write well."},
        {"role": "system", "content": [{"type": "text", "text": "Write well."}]},
    )
    span = await harness.receiver.one()
    assert span.attributes["tracegrad.prompt.name"] == "writer"
    assert span.attributes["tracegrad.trainable"] is True


async def versions(harness: Harness, rollouts: range) -> list[int]:
    """The version that each rollout is given now."""
    before = len(harness.receiver.spans)
    await asyncio.gather(*(harness.chat(asking(), at=f"/rollout/r{number}/v1") for number in rollouts))
    spans = (await harness.receiver.wait(before + len(rollouts)))[before:]
    found = {span.attributes["tracegrad.rollout.id"]: span.attributes["tracegrad.prompt.version"] for span in spans}
    return [found[f"r{number}"] for number in rollouts]


async def test_rollouts_stay_on_their_variant_whatever_changes(harness: Harness, fake: FakeVllm) -> None:
    await given(harness, "any", "one", "two")
    first = await versions(harness, range(40))
    assert set(first) == {1, 2}
    status, _ = await put(
        harness, "any", {"variants": [{"version": 2, "weight": 1e-6}, {"version": 3, "text": "three", "weight": 1e6}]}
    )
    assert status == 200
    assert await versions(harness, range(40)) == first
    assert await versions(harness, range(40, 60)) == [3] * 20, "new rollouts get what is in force"
    texts = {1: "one", 2: "two", 3: "three"}
    told = [one["messages"][0]["content"] for one in fake.requests[40:80]]
    assert sorted(told) == sorted(texts[version] for version in first), "also the text of a version that was retired"


async def test_another_process_and_a_restarted_one_know_both(harness_for: Any, fake: FakeVllm, tmp_path: Path) -> None:
    route = {"name": "policy", "upstream": fake.url, "policy": "policy"}
    shared = {"data": tmp_path / "shared", "reuse_port": True}
    one, other = await harness_for(route, limits=shared), await harness_for(route, limits=shared)
    await given(one, "any", "one", "two")
    first = await versions(one, range(30))
    await given(other, "any", "one")
    assert await versions(other, range(30)) == first
    late = await harness_for(route, limits=shared)
    assert await versions(late, range(30)) == first
    assert await versions(one, range(30, 40)) == [1] * 10, "the change reached the first one"


async def test_a_trace_without_a_rollout_id_stays_and_lonely_calls_are_drawn_each(harness: Harness) -> None:
    await given(harness, "any", "one", "two")
    parents = [f"00-{number:032x}-{1:016x}-01" for number in range(1, 11)]
    for parent in parents:
        await harness.chat(asking(), traceparent=parent)
    await put(harness, "any", {"variants": [{"version": 3, "text": "three"}]})
    for parent in parents:
        await harness.chat(asking(), traceparent=parent)
    await harness.chat(asking())
    spans = await harness.receiver.wait(21)
    by_trace = [
        {one.attributes["tracegrad.prompt.version"] for one in harness.receiver.of_trace(one.trace_id)} for one in spans
    ]
    assert [len(one) for one in by_trace] == [1] * 21
    assert by_trace.count({3}) == 1


async def test_a_deletion_is_in_force_at_once_and_texts_are_for_ever(harness: Harness, fake: FakeVllm) -> None:
    await given(harness, "any", "one", "two")
    first = await versions(harness, range(10))
    deleted = await harness.session.delete(f"{harness.admin}/prompts/any")
    assert (deleted.status, await deleted.json()) == (200, {"name": "any", "deleted": True})
    await harness.chat(asking(), at="/rollout/r1/v1")
    assert fake.requests[-1]["messages"][0]["content"] == AGENT
    assert (await harness.session.delete(f"{harness.admin}/prompts/any")).status == 404
    status, told = await put(harness, "any", {"variants": [{"version": 1, "text": "changed"}]})
    assert (status, "use a new version" in told["error"]) == (409, True)
    assert (await put(harness, "any", {"variants": [{"version": 1}, {"version": 2}]}))[0] == 200
    await harness.receiver.wait(11)
    assert await versions(harness, range(10)) == first


async def test_prompts_are_shown_with_all_their_texts(harness: Harness) -> None:
    await given(harness, "b", "one", "two", match={"agent": "x"})
    await put(harness, "b", {"match": {"agent": "x"}, "variants": [{"version": 2, "weight": 3}], "enabled": False})
    await given(harness, "a", "text")
    listed = (await (await harness.session.get(f"{harness.admin}/prompts")).json())["prompts"]
    assert [one["name"] for one in listed] == ["a", "b"]
    assert listed[1] == {
        "name": "b",
        "enabled": False,
        "match": {"agent": "x"},
        "variants": [{"version": 2, "weight": 3.0, "text": "two"}],
        "retired": [{"version": 1, "text": "one"}],
    }
    assert await (await harness.session.get(f"{harness.admin}/prompts/b")).json() == listed[1]
    assert (await harness.session.get(f"{harness.admin}/prompts/c")).status == 404


ONE = {"version": 1, "text": "x"}


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("a", [], "bad prompt"),
        ("a", {}, "variants"),
        ("a", {"variants": []}, "variants"),
        ("a", {"variants": [ONE, ONE]}, "version 1 is there twice"),
        ("a", {"variants": [ONE | {"weight": 0}]}, "weight"),
        ("a", {"variants": [ONE | {"weight": -1}]}, "weight"),
        ("a", {"variants": [ONE | {"weight": "1"}]}, "weight"),
        ("a", {"variants": [ONE | {"version": 0}]}, "version"),
        ("a", {"variants": [ONE | {"text": ""}]}, "text"),
        ("a", {"variants": [{"version": 1}]}, "version 1 of 'a' has no text yet"),
        ("a", {"variants": [ONE], "match": {"system": "("}}, "unclosed group"),
        ("a", {"variants": [ONE], "match": {"system": "(?=x)"}}, "look-around"),
        ("a", {"variants": [ONE], "match": {"agents": "x"}}, "match.agents"),
        ("a", {"variants": [ONE], "enabled": "yes"}, "enabled"),
        ("a", {"variants": [ONE], "more": 1}, "more"),
        ("a%20b", {"variants": [ONE]}, "bad prompt name"),
    ],
)
async def test_a_bad_definition_is_refused_with_one_sentence(harness: Harness, name: str, body: Any, said: str) -> None:
    status, told = await put(harness, name, body)
    assert status == 400
    assert said in told["error"]
    assert "\n" not in told["error"]
    assert (await (await harness.session.get(f"{harness.admin}/prompts")).json()) == {"prompts": []}


async def test_a_weight_must_be_finite(harness: Harness) -> None:
    for weight in (b"NaN", b"Infinity", b"1e999"):
        body = b'{"variants": [{"version": 1, "text": "x", "weight": ' + weight + b"}]}"
        answer = await harness.session.put(f"{harness.admin}/prompts/a", data=body)
        assert answer.status == 400
        assert "weight" in (await answer.json())["error"]
