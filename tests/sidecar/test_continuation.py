"""Calls that extend earlier ones: what the engine is asked, and what it is not."""

import asyncio
import json
from typing import Any

import pytest
from sidecar_harness import Harness
from talk import LOOK, MOON, MORE, SEA, TOOL, USER, Json, Talk, outcomes, text
from template_engine import Said


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("says", [SEA, LOOK])
async def test_history_keeps_its_tokens(served: Any, says: Said, stream: bool) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine, tools=[TOOL], stream=stream)
    answer = await talk.ask({"role": "system", "content": "Be brief."}, USER, says=says)
    talk.echo(answer)
    after = {"role": "tool", "tool_call_id": "call_0", "content": "42"} if says is LOOK else MORE
    last = await talk.ask(after, says=MOON)
    assert last["content"] == MOON.content
    first, second = engine.prompts
    known = first + engine.sampled(says)
    assert second[: len(known)] == known
    bridge = text(second[len(known) :])
    assert bridge == f"\n<|im_start|>{after['role']}\n{after['content']}<|im_end|>\n<|im_start|>assistant\n"
    ordinary = engine.render(engine.requests[1])
    assert second != ordinary, "the tokeniser would have chosen other ids"
    assert says is LOOK or text(second) == text(ordinary), "but the text is the same"
    talk.echo(last)
    await talk.ask({"role": "user", "content": "Thanks."})
    known = second + engine.sampled(MOON)
    assert engine.prompts[2][: len(known)] == known
    assert await outcomes(harness, 3) == [None, "tokens", "tokens"]
    for span in harness.receiver.spans:
        assert span.attributes["tracegrad.trainable"] is True


async def test_the_client_sees_a_chat_completion_like_any_other(served: Any) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER))
    engine.says += [MOON, MOON]
    body = {"model": "policy", "messages": [*talk.messages, MORE]}
    continued = await harness.chat(body, at="/rollout/r1/v1")
    ordinary = await harness.chat(body, at="/rollout/r2/v1")
    known, other = json.loads(await continued.read()), json.loads(await ordinary.read())
    assert engine.prompts[1] != engine.prompts[2]
    del known["id"], other["id"], known["usage"], other["usage"]
    assert known == other
    assert known["choices"][0]["token_ids"] is None


ECHOES: dict[str, tuple[Said, Any]] = {
    "null content": (LOOK, lambda one: {**one, "content": None}),
    "no content": (LOOK, lambda one: {name: value for name, value in one.items() if name != "content"}),
    "empty content": (LOOK, lambda one: {**one, "content": ""}),
    "no parts": (LOOK, lambda one: {**one, "content": []}),
    "arguments spelled otherwise": (
        LOOK,
        lambda one: _with_arguments(one, '{ "deep": {"a": [1, 2.5], "b": 1}, "word": "tide" }'),
    ),
    "other ids of calls": (LOOK, lambda one: {**one, "tool_calls": [{**one["tool_calls"][0], "id": "mine"}]}),
    "without its nulls": (SEA, lambda one: {"role": "assistant", "content": one["content"]}),
    "with further nulls": (SEA, lambda one: {**one, "refusal": None, "function_call": None, "audio": None}),
    "in parts": (SEA, lambda one: {**one, "content": [{"type": "text", "text": one["content"]}]}),
    "without the space around": (Said("\n The sea. \n"), lambda one: {**one, "content": one["content"].strip()}),
}


def _with_arguments(message: Json, arguments: str) -> Json:
    (call,) = message["tool_calls"]
    return {**message, "tool_calls": [{**call, "function": {**call["function"], "arguments": arguments}}]}


@pytest.mark.parametrize("echo", ECHOES)
async def test_an_echo_is_known_by_what_it_says(served: Any, echo: str) -> None:
    says, changed = ECHOES[echo]
    harness, engine = await served()
    talk = Talk(harness, engine, tools=[TOOL])
    talk.messages.append(changed(await talk.ask(USER, says=says)))
    await talk.ask(MORE)
    known = engine.prompts[0] + engine.sampled(says)
    assert engine.prompts[1][: len(known)] == known
    assert await outcomes(harness, 2) == [None, "tokens"]


async def test_an_answer_echoed_as_two_messages_is_one(served: Any) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine, tools=[TOOL])
    answer = await talk.ask(USER, says=LOOK)
    talk.echo({"role": "assistant", "content": ""})
    talk.echo(answer)
    await talk.ask(MORE)
    known = engine.prompts[0] + engine.sampled(LOOK)
    assert engine.prompts[1][: len(known)] == known
    assert text(engine.prompts[1]).count("<|im_start|>assistant") == 2


EDITS: dict[str, Any] = {
    "the question": lambda one: [{**USER, "content": "What is the sea?"}, *one[1:]],
    "the answer": lambda one: [one[0], {**one[1], "content": "It rises."}, *one[2:]],
    "a system prompt": lambda one: [{"role": "system", "content": "Be long."}, *one],
    "an argument": lambda one: [one[0], _with_arguments(one[1], '{"word": "moon"}'), *one[2:]],
    "a message left out": lambda one: one[1:],
}


@pytest.mark.parametrize("edit", EDITS)
async def test_edited_history_is_no_extension(served: Any, edit: str) -> None:
    says = LOOK if edit == "an argument" else SEA
    harness, engine = await served()
    talk = Talk(harness, engine, tools=[TOOL])
    talk.echo(await talk.ask(USER, says=says))
    talk.messages = EDITS[edit]([*talk.messages, MORE])
    await talk.ask()
    assert engine.prompts[1] == engine.render(engine.requests[1])
    assert "kv_transfer_params" not in engine.requests[1]
    assert await outcomes(harness, 2) == [None, "not_an_extension"]


OTHER_REQUESTS: dict[str, tuple[Json, str]] = {
    "other tools": ({"tools": [TOOL, TOOL]}, "other_settings"),
    "no tools": ({"tools": None}, "other_settings"),
    "tools forbidden": ({"tool_choice": "none"}, "other_settings"),
    "other variables": ({"chat_template_kwargs": {"enable_thinking": False}}, "other_settings"),
    "another effort": ({"reasoning_effort": "low"}, "other_settings"),
    "a truncated prompt": ({"truncate_prompt_tokens": 100}, "unusual_request"),
    "a message to finish": ({"continue_final_message": True, "add_generation_prompt": False}, "unusual_request"),
    "ids of its own": ({"kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}}, "unusual_request"),
}


@pytest.mark.parametrize("other", OTHER_REQUESTS)
async def test_a_request_that_is_rendered_otherwise_goes_by_its_messages(served: Any, other: str) -> None:
    settings, outcome = OTHER_REQUESTS[other]
    harness, engine = await served()
    talk = Talk(harness, engine, tools=[TOOL])
    talk.echo(await talk.ask(USER))
    await talk.ask(MORE, **settings)
    assert engine.requests[1].get("kv_transfer_params") == settings.get("kv_transfer_params")
    assert await outcomes(harness, 2) == [None, outcome]


async def test_another_rollout_or_attempt_shares_nothing(served: Any) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER))
    for rollout in ("r2", "r1/attempt/1"):
        talk.rollout = rollout
        await talk.branch().ask(MORE)
    assert await outcomes(harness, 3) == [None, "no_history", "no_history"]


async def test_branches_go_on_each_from_its_own_end(served: Any) -> None:
    harness, engine = await served()
    trunk = Talk(harness, engine)
    trunk.echo(await trunk.ask(USER))
    branches = [trunk.branch(), trunk.branch()]
    told = [Said("On the left."), Said("On the right.")]
    for branch, says in zip(branches, told, strict=True):
        branch.echo(await branch.ask(MORE, says=says))
    await asyncio.gather(
        *(branch.ask({"role": "user", "content": says.content}) for branch, says in zip(branches, told, strict=True))
    )
    for prompt in engine.prompts[3:]:
        starts = [prompt[: len(known)] == known for known in (engine.prompts[1] + engine.sampled(one) for one in told)]
        assert starts in ([True, False], [False, True])
        assert text(prompt).count("On the left.") in (0, 2)
    assert await outcomes(harness, 5) == [None, *["tokens"] * 4]


async def test_any_of_several_choices_can_be_followed(served: Any) -> None:
    harness, engine = await served()
    engine.says.append(SEA)
    talk = Talk(harness, engine)
    await talk.ask(USER, says=MOON, n=2)
    talk.echo({"role": "assistant", "content": MOON.content})
    await talk.ask(MORE)
    known = engine.prompts[0] + engine.sampled(MOON)
    assert engine.prompts[1][: len(known)] == known


@pytest.mark.parametrize(
    ("says", "settings"),
    [
        (Said("The sea ri", end=False, finish_reason="length"), {}),
        (Said("The sea rises.", end=False), {"stop": ["."]}),
    ],
)
async def test_a_turn_that_was_broken_off_is_closed_by_the_template(served: Any, says: Said, settings: Json) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER, says=says, **settings))
    await talk.ask(MORE)
    known = engine.prompts[0] + engine.sampled(says)
    assert engine.prompts[1][: len(known)] == known
    assert text(engine.prompts[1][len(known) :]).startswith("<|im_end|>\n<|im_start|>user\nAnd when?")
    assert await outcomes(harness, 2) == [None, "tokens"]


@pytest.mark.parametrize(
    ("says", "outcome"),
    [
        (Said("The sea", end=False), "other_end"),
        (Said("", tool_calls=LOOK.tool_calls, end=False, finish_reason="length"), "cut_off"),
    ],
)
async def test_a_turn_with_an_end_of_its_own_is_rendered_anew(served: Any, says: Said, outcome: str) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine, tools=[TOOL])
    talk.echo(await talk.ask(USER, says=says))
    await talk.ask(MORE)
    assert engine.prompts[1] == engine.render(engine.requests[1])
    assert await outcomes(harness, 2) == [None, outcome]


async def test_pictures_go_by_messages(served: Any) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER))
    engine.render = lambda _: [1, 2]  # type: ignore[method-assign]
    await talk.ask({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]})
    assert await outcomes(harness, 2) == [None, "media"]


async def test_nothing_new_and_too_much(served: Any) -> None:
    harness, engine = await served(max_model_len=10_000)
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER))
    await talk.branch().ask()
    engine.max_model_len = 20
    await talk.ask(MORE)
    assert await outcomes(harness, 3) == [None, "nothing_new", "too_long"]


async def test_an_engine_that_ignores_ids_is_noticed(served: Any) -> None:
    harness, engine = await served(takes_ids=False)
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER))
    talk.echo(await talk.ask(MORE))
    await talk.ask(MORE)
    assert await outcomes(harness, 3) == [None, "ignored", "ignored"]
    page = await (await harness.session.get(f"{harness.admin}/metrics")).text()
    assert 'tracegrad_sidecar_continuations_total{policy="policy",outcome="ignored"} 2' in page


async def test_an_engine_that_cannot_render_serves_all_the_same(harness: Harness, fake: Any) -> None:
    history = [USER, {"role": "assistant", "content": "".join(("He", "llo ", "caf\u00e9 ", "\u2713", "!"))}, MORE]
    for messages in ([USER], history):
        answer = await harness.chat({"messages": messages}, at="/rollout/r1/v1")
        assert answer.status == 200
        await answer.read()
    assert (await outcomes(harness, 2))[1] == "unrendered"
    assert "kv_transfer_params" not in fake.requests[1]
    assert "/tokenize" in (await _described(harness))["why"]


async def _described(harness: Harness) -> Json:
    told = await (await harness.session.get(f"{harness.admin}/policies")).json()
    found: Json = told["policies"][0]["continuation"]
    return found


async def test_what_was_cut_off_is_not_gone_on_from(served: Any) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER, says=Said("The sea", finish_reason="abort")))
    await talk.ask(MORE)
    assert await outcomes(harness, 2) == [None, "no_history"]


async def test_a_stream_that_dies_is_not_gone_on_from(served: Any) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine, stream=True)
    engine.die_before_end = True
    await talk.ask(USER)
    engine.die_before_end = False
    talk.echo({"role": "assistant", "content": SEA.content})
    await talk.ask(MORE)
    assert await outcomes(harness, 2) == [None, "no_history"]


async def test_calls_that_nobody_can_extend_are_not_kept(served: Any) -> None:
    harness, engine = await served()
    history: list[Json] = [USER, {"role": "assistant", "content": SEA.content}, MORE]
    for messages in ([USER], history):
        engine.says.append(SEA)
        await (await harness.chat({"messages": messages})).read()
    assert await outcomes(harness, 2) == [None, None]
    assert engine.prompts[1] == engine.render(engine.requests[1])


async def test_entries_of_one_policy_agree(harness_for: Any) -> None:
    from tracegrad.errors import SettingsError

    entry = {"upstream": "http://127.0.0.1:1", "policy": "policy"}
    with pytest.raises(SettingsError, match="differ in continuation"):
        await harness_for({"name": "a", **entry}, {"name": "b", "continuation": "off", **entry})
    with pytest.raises(SettingsError, match="no policy"):
        await harness_for({"name": "a", "upstream": "http://127.0.0.1:1", "continuation": "tokens"})
