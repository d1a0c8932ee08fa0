"""An engine that is slow to say how it would write a prompt does not delay calls for long, nor all of them."""

import asyncio
from typing import Any

import pytest
from talk import MORE, USER, Talk, outcomes

from sidecar.continuation import patience
from sidecar.continuation.patience import SLOW_IN_A_ROW, Patience


async def settled(engine: Any) -> None:
    """Wait until the engine's template was examined."""
    known = -1
    while known != engine.rendered or not engine.rendered:
        known = engine.rendered
        await asyncio.sleep(0.2)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.continuation.road.LIMIT_S", 0.05)
    monkeypatch.setattr("sidecar.continuation.patience.LIMIT_S", 0.0)


async def test_calls_go_the_ordinary_road_and_then_ask_no_more(served: Any, short: None) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER))
    await settled(engine)
    engine.render_delay_s = 30
    asked = []
    for _ in range(SLOW_IN_A_ROW + 2):
        talk.echo(await talk.ask(MORE))
        asked.append(engine.rendered)
    assert engine.prompts[-1] == engine.render(engine.requests[-1]), "the ordinary prompt"
    assert asked[-3] == asked[-2] == asked[-1], "it is left alone"
    assert asked[0] < asked[1] < asked[2]
    assert await outcomes(harness, SLOW_IN_A_ROW + 3) == [None] + ["slow"] * (SLOW_IN_A_ROW + 2)


async def test_after_a_slow_call_the_next_goes_on_from_it(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    harness, engine = await served()
    talk = Talk(harness, engine)
    talk.echo(await talk.ask(USER))
    await settled(engine)
    monkeypatch.setattr("sidecar.continuation.road.LIMIT_S", 0.05)
    engine.render_delay_s = 30
    talk.echo(await talk.ask(MORE))
    monkeypatch.setattr("sidecar.continuation.road.LIMIT_S", 10.0)
    engine.render_delay_s = 0
    talk.echo(await talk.ask(MORE))
    assert await outcomes(harness, 3) == [None, "slow", "tokens"]


def test_an_engine_rests_after_several_slow_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    one = Patience()
    for _ in range(SLOW_IN_A_ROW - 1):
        one.slow("a")
        now[0] += 1
    one.quick("a")
    for _ in range(20):
        one.slow("a")
    assert one.asks("a"), "calls that wait at the same time count as one"
    for _ in range(SLOW_IN_A_ROW - 1):
        now[0] += 1
        one.slow("a")
    assert not one.asks("a") and one.asks("b")
    now[0] += patience.REST_S
    assert one.asks("a")
    one.slow("a")
    assert not one.asks("a"), "it has shown no improvement"


@pytest.mark.parametrize("where", ["documents", "chat_template_kwargs"])
async def test_documents_start_no_examinations(served: Any, where: str) -> None:
    harness, engine = await served()
    plain = Talk(harness, engine)
    plain.echo(await plain.ask(USER))
    await settled(engine)
    before = engine.rendered
    talk = Talk(harness, engine, rollout="r2")
    for number in range(3):
        found = [{"title": f"{number}", "text": "the moon"}]
        given = {"documents": found} if where == "documents" else {"chat_template_kwargs": {"documents": found}}
        talk.echo(await talk.ask(USER, **given))
    await settled(engine)
    assert engine.rendered == before
    assert await outcomes(harness, 4) == [None, None, "unusual_request", "unusual_request"]
