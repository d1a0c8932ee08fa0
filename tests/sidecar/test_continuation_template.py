"""Templates of several habits, thinking that stays or goes, and what the sidecar says of them."""

import asyncio
from typing import Any

import pytest
from chat_templates import APPEND_ONLY, NO_THINKING, NO_TOOLS, STRIPS_THINKING, TWO_ENDS
from sidecar_harness import Harness
from talk import MORE, THOUGHT, USER, Json, Talk, outcomes


@pytest.mark.parametrize(
    ("template", "setting", "kept", "outcome"),
    [
        (APPEND_ONLY, "auto", "as it was", "tokens"),
        (APPEND_ONLY, "auto", "dropped", "dropped_thinking"),
        (APPEND_ONLY, "auto", "edited", "edited_thinking"),
        (APPEND_ONLY, "auto", "older name", "tokens"),
        (APPEND_ONLY, "tokens", "dropped", "tokens"),
        (APPEND_ONLY, "tokens", "edited", "edited_thinking"),
        (NO_THINKING, "auto", "as it was", "dropped_thinking"),
        (NO_THINKING, "tokens", "as it was", "tokens"),
        (STRIPS_THINKING, "auto", "as it was", "template"),
        (STRIPS_THINKING, "tokens", "as it was", "tokens"),
        (STRIPS_THINKING, "tokens", "dropped", "tokens"),
    ],
)
async def test_thinking_stays_or_the_template_rules(
    served: Any, template: str, setting: str, kept: str, outcome: str
) -> None:
    harness, engine = await served(template, setting)
    talk = Talk(harness, engine)
    answer = await talk.ask(USER, says=THOUGHT)
    changed: dict[str, Json] = {
        "as it was": {},
        "dropped": {"reasoning": None},
        "edited": {"reasoning": "Something else."},
        "older name": {"reasoning": None, "reasoning_content": answer["reasoning"]},
    }
    talk.echo(answer, **changed[kept])
    await talk.ask(MORE)
    known = engine.prompts[0] + engine.sampled(THOUGHT)
    assert (engine.prompts[1][: len(known)] == known) == (outcome == "tokens")
    if outcome != "tokens":
        assert engine.prompts[1] == engine.render(engine.requests[1])
    assert await outcomes(harness, 2) == [None, outcome]


async def test_thinking_of_long_ago_counts_too(served: Any) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER, says=THOUGHT))
    talk.echo(await talk.ask(MORE, says=THOUGHT))
    del talk.messages[1]["reasoning"]
    await talk.ask(MORE)
    assert await outcomes(harness, 3) == [None, "tokens", "dropped_thinking"]


@pytest.mark.parametrize("reasoning_parser", [True, False])
async def test_thinking_echoed_in_the_text_is_thinking(served: Any, reasoning_parser: bool) -> None:
    harness, engine = await served(NO_THINKING, reasoning_parser=reasoning_parser)
    talk = Talk(harness, engine)
    await talk.ask(USER, says=THOUGHT)
    talk.echo({"role": "assistant", "content": THOUGHT.text})
    await talk.ask(MORE)
    known = engine.prompts[0] + engine.sampled(THOUGHT)
    assert engine.prompts[1][: len(known)] == known


STATES: tuple[tuple[str, str, str, str], ...] = (
    (APPEND_ONLY, "auto", "tokens", "the template is append-only"),
    (NO_THINKING, "auto", "tokens", "the template is append-only"),
    (NO_TOOLS, "auto", "tokens", "the template is append-only"),
    (STRIPS_THINKING, "auto", "refused", "it takes thinking out of earlier answers"),
    (STRIPS_THINKING, "tokens", "tokens", "the template is not append-only"),
    (TWO_ENDS, "tokens", "refused", "it ends an answer in different ways"),
    (APPEND_ONLY, "off", "off", 'continuation = "off"'),
)


@pytest.mark.parametrize("case", STATES)
async def test_the_admin_port_says_what_calls_will_do(
    served: Any, caplog: pytest.LogCaptureFixture, case: tuple[str, str, str, str]
) -> None:
    template, setting, state, why = case
    with caplog.at_level("INFO", "sidecar"):
        harness, engine = await served(template, setting)
        found = await _state(harness)
    assert (found["setting"], found["state"]) == (setting, state)
    assert why in found["why"]
    lines = [line for line in caplog.messages if line.startswith("continuation policy=policy")]
    assert len(lines) == (setting != "off")
    assert all(f"state={state}" in line and why in line for line in lines)
    if setting == "off":
        assert engine.rendered == 0


async def _state(harness: Harness) -> Json:
    async with asyncio.timeout(10):
        while True:
            told = await (await harness.session.get(f"{harness.admin}/policies")).json()
            found: Json = told["policies"][0]["continuation"]
            if found["state"] != "unknown":
                return found
            await asyncio.sleep(0.02)


async def test_a_template_without_tools_continues_talk(served: Any) -> None:
    harness, engine = await served(NO_TOOLS)
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER))
    await talk.ask(MORE)
    assert await outcomes(harness, 2) == [None, "tokens"]
